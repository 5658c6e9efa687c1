"""The command `eyas`: all commands together, and what a user sees of an error."""

import sys
import traceback
from collections.abc import Callable

import typer
from rich.console import Console

from eyas.cli import check, control, evaluate, extract, generate, plan, report, run, train, watch
from eyas.cli import list as listing
from eyas.errors import EyasError

_COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("check", check.check),
    ("plan", plan.plan),
    ("run", run.run),
    ("generate", generate.generate),
    ("extract", extract.extract),
    ("train", train.train),
    ("evaluate", evaluate.evaluate),
    ("list", listing.list_),
    ("watch", watch.watch),
    ("set", control.set_),
    ("pause", control.pause),
    ("resume", control.resume),
    ("cancel", control.cancel),
    ("retry", control.retry),
    ("report", report.report),
)


def build() -> typer.Typer:
    """The application with its commands."""
    app = typer.Typer(
        name="eyas",
        help="From questions to an EAGLE-3 drafter for the model that a vLLM serves.",
        epilog="With --debug, an error shows where in eyas it arose.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    for name, command in _COMMANDS:
        app.command(name)(command)
    return app


def main() -> None:
    """Runs the command line. An error of eyas is one sentence and exit status 1."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    console = Console(stderr=True)
    try:
        build()(arguments)
    except EyasError as error:
        if debug:
            traceback.print_exc()
        console.print(f"error: {error}", soft_wrap=True, highlight=False, markup=False)
        sys.exit(1)
    except Exception as error:  # the last boundary: nobody meets a traceback unasked
        if debug:
            raise
        text = f"error: eyas has a fault: {type(error).__name__}: {error}; please report it with the output of --debug"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
        sys.exit(1)
