"""What `generate` and `run`, and the commands that take a run further, have in common."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.cli import options
from eyas.cli.console import console
from eyas.cli.local import session
from eyas.cli.place import Place
from eyas.cli.request import Request
from eyas.cli.settings import Settings
from eyas.run.v1 import run_pb2 as pb
from eyas.telemetry import process


def start(
    until: pb.Stage.ValueType,
    output: str,
    given: Mapping[str, Any],
    assignments: list[str],
    *,
    file: Path | None = None,
    vllm_python: Path | None = None,
) -> None:
    """Creates the run of these settings, or goes on with it, up to a stage. Without settings: goes on as it was."""
    place = Place.of(output)
    settings = process.settings(Settings)
    asked = file is not None or "model.uri" in given or "dataset.sources" in given
    mapping = options.mapping(place.run, file, given, assignments) if asked else None
    changes = {} if asked else options.values(given, assignments)
    request = Request(place, until, vllm_python or settings.vllm_python, mapping, changes)
    session.work(request, settings, console())
