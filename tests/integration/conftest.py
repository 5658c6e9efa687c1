"""The real things: a model's folder, vLLM's environment, a running vLLM. `make test` sets them up."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from eyas.run import spec as specs
from eyas.vllm import launch

ROOT = Path(__file__).parents[2]
START_SECONDS = 300


def _present(path: Path) -> Path:
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make test`, which sets it up")
    return path


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """SmolLM2-135M-Instruct in float16, with tokenizer and chat template."""
    folder = ROOT / "build" / "assets" / "model"
    _present(folder / "config.json")
    return folder


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Interpreter of the environment that vLLM and eyas are installed in."""
    return _present(ROOT / ".venv-vllm" / "bin" / "python")


@pytest.fixture(scope="session")
def vllm_host(vllm_python: Path) -> launch.Host:
    """That environment, as `eyas.vllm.launch` takes it."""
    return launch.Host.detect(vllm_python)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_server(
    model_folder: Path, vllm_host: launch.Host, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[launch.VllmServer]:
    """One vLLM that serves the model as `smollm2`, for all tests that only ask it something."""
    spec = specs.build(
        {
            "name": "tests",
            "model": {"uri": str(model_folder), "servedName": "smollm2"},
            "vllm": {"dtype": "float16", "maxModelLen": 2048},
        }
    )
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    async with launch.VllmServer(launch.generating(spec, vllm_host), log, START_SECONDS) as server:
        yield server
