"""`eyas watch`: looks at a run that another process works on."""

import asyncio

from eyas.cli import options
from eyas.cli.console import console
from eyas.cli.local.claim import attached, is_claimed
from eyas.cli.local.following import follow
from eyas.cli.place import Place
from eyas.cli.screen import Screen


def watch(output: options.Existing) -> None:
    """Show the progress of a run that works on this machine, until it ends or Ctrl-C."""
    place = Place.of(output)

    async def show() -> None:
        async with attached(place) as stub:
            with Screen(console()) as screen:
                async for progress in follow(stub, place.run, lambda: is_claimed(place)):
                    screen.show(progress)

    asyncio.run(show())
