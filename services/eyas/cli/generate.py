"""`eyas generate`: answers for a dataset."""

from typing import Any

from eyas.cli import options, running
from eyas.run.v1 import run_pb2 as pb


@options.accepting(*options.MODEL, *options.DATA, *options.GENERATE)
def generate(
    given: dict[str, Any],
    output: options.Output,
    overrides: options.Overrides = None,
    *,
    file: options.SpecFile = None,
    sets: options.Sets = None,
    holdout: options.Holdout = None,
    vllm_python: options.VllmPython = None,
) -> None:
    """Generate answers for a dataset; interrupted, the same command goes on where it was."""
    given |= options.holdout(holdout)
    running.start(
        pb.STAGE_GENERATE, output, given, [*(sets or []), *(overrides or [])], file=file, vllm_python=vllm_python
    )
