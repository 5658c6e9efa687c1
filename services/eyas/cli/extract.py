"""`eyas extract`: a run that is there, up to this stage."""

from typing import Any

from eyas.cli import options, running
from eyas.run.v1 import run_pb2 as pb


@options.accepting(*options.EXTRACT)
def extract(
    given: dict[str, Any],
    output: options.Existing,
    overrides: options.Overrides = None,
    *,
    sets: options.Sets = None,
    vllm_python: options.VllmPython = None,
) -> None:
    """Take the hidden states of a run that has its answers."""
    running.start(pb.STAGE_EXTRACT, output, given, [*(sets or []), *(overrides or [])], vllm_python=vllm_python)
