"""`eyas set`, `pause`, `resume`, `cancel`, `retry`: what is asked of a run that is worked on."""

import asyncio
from typing import Annotated

import typer

from eyas.cli import options
from eyas.cli import progress as texts
from eyas.cli.console import console, say
from eyas.cli.local.claim import attached
from eyas.cli.local.opening import control
from eyas.cli.place import Place
from eyas.dispatch.v1 import dispatch_pb2 as pb

BY_HAND = "paused by hand"
"""How the reason of a pause begins that a person asked for, and not the dispatcher."""

_Assignments = Annotated[list[str], typer.Argument(metavar="PATH=VALUE...", help="Such as generation.concurrency=64.")]
_Reason = Annotated[str, typer.Option("--reason", help="Why, for others who look.")]


def set_(output: options.Existing, assignments: _Assignments) -> None:
    """Change settings of a running run, such as timeouts.stall=300."""
    _ask(output, pb.ControlRunRequest(set=pb.Set(values=options.values({}, assignments))))


def pause(output: options.Existing, reason: _Reason = "") -> None:
    """Stop a run's requests; partial answers are kept."""
    _ask(output, pb.ControlRunRequest(pause=pb.Pause(reason=f"{BY_HAND}: {reason}" if reason else BY_HAND)))


def resume(output: options.Existing) -> None:
    """Let a paused run go on."""
    _ask(output, pb.ControlRunRequest(resume=pb.Resume()))


def cancel(output: options.Existing) -> None:
    """End a run; what is done stays."""
    _ask(output, pb.ControlRunRequest(cancel=pb.Cancel()))


def retry(output: options.Existing) -> None:
    """Try items again that were given up."""
    _ask(output, pb.ControlRunRequest(retry=pb.Retry()))


def _ask(output: str, action: pb.ControlRunRequest) -> None:
    place = Place.of(output)
    action.run = place.run

    async def ask() -> None:
        async with attached(place) as stub:
            progress = await control(stub, action)
        say(console(), texts.line(progress))

    asyncio.run(ask())
