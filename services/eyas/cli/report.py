"""`eyas report`: the run as a page for people."""

import asyncio

from eyas import report as reports
from eyas.cli import options
from eyas.cli.console import console, say
from eyas.cli.place import Place
from eyas.storage.layout import RunLayout
from eyas.storage.objects import open_store


def report(output: options.Existing) -> None:
    """Build report.html from the run's data, as far as it has come."""
    place = Place.of(output)

    async def build() -> None:
        store = open_store(place.root)
        await store.put(RunLayout(place.run).report, await reports.build(store, place.run))

    asyncio.run(build())
    say(console(), f"{place.output}/report.html")
