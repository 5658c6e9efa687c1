"""`eyas evaluate`: a run that is there, up to this stage."""

from typing import Any

from eyas.cli import options, running
from eyas.run.v1 import run_pb2 as pb


@options.accepting(*options.EVALUATE)
def evaluate(
    given: dict[str, Any],
    output: options.Existing,
    overrides: options.Overrides = None,
    *,
    sets: options.Sets = None,
    vllm_python: options.VllmPython = None,
) -> None:
    """Measure the drafters of a run in vLLM, after what lacks before it."""
    running.start(pb.STAGE_EVALUATE, output, given, [*(sets or []), *(overrides or [])], vllm_python=vllm_python)
