"""The entry point of `eyas`, and what a user sees of an error."""

import os
import sys
import traceback

from eyas.cli.console import console, say
from eyas.errors import EyasError


def main() -> None:
    """Runs the command line. An error of eyas is one sentence and exit status 1."""
    # gRPC reads this when it is imported. Its handlers for forks are for children that go on with its channels; ours
    # are other programs, and would only be complained about.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from eyas.cli.app import build  # noqa: PLC0415

    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    output = console(stderr=True)
    try:
        build()(arguments)
    except EyasError as error:
        if debug:
            traceback.print_exc()
        say(output, f"error: {error}")
        sys.exit(1)
    except Exception as error:  # the last boundary: nobody meets a traceback unasked
        if debug:
            raise
        text = f"error: eyas has a fault: {type(error).__name__}: {error}; please report it with the output of --debug"
        say(output, text)
        sys.exit(1)
