"""`eyas demo`: the whole way, on real questions and a small model."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eyas.cli import options
from eyas.cli.settings import Settings
from eyas.demo import demo as demonstration
from eyas.telemetry import process

Build = Annotated[Path, typer.Option("--build", metavar="FOLDER", help="Where model, questions and run go.")]


def demo(build: Build = Path("build"), *, vllm_python: options.VllmPython = None) -> None:
    """From real questions to a measured drafter for a small model; interrupted, the same command goes on."""
    python = vllm_python or process.settings(Settings).vllm_python
    demonstration.run(build, python, Console())
