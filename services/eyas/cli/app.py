"""All commands together."""

from collections.abc import Callable

import typer

from eyas.cli import check, control, demo, evaluate, extract, generate, plan, report, run, train, watch
from eyas.cli import list as listing

_COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("demo", demo.demo),
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
