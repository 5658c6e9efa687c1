"""`python -m eyas.extractor`: extracts the hidden states of a run, and exits with 0 when all are there."""

import asyncio

from eyas.extractor.extract import extract
from eyas.extractor.progress import telling
from eyas.extractor.settings import Settings
from eyas.storage.objects import open_store
from eyas.storage.runs import read_spec
from eyas.telemetry import logs, process

INTERRUPTED = 75
"""Exit status when told to stop: BSD's EX_TEMPFAIL, so that no supervisor counts the extraction as complete."""


async def run(settings: Settings) -> None:
    """Extracts until all is done, or a signal ends it. What is written by then stays, and is not done again."""
    stop = process.stop_event()
    store = open_store(settings.storage_uri)
    spec = await read_spec(store, settings.run)
    async with telling(settings.run, settings.dispatcher, settings.token.get_secret_value()) as progress:
        work, stopped = asyncio.create_task(extract(store, spec, progress.tell)), asyncio.create_task(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            raise SystemExit(INTERRUPTED)
        await work


def main() -> None:
    """Reads the settings and extracts."""
    settings = process.settings(Settings)
    logs.configure("extractor", settings.log_json)
    process.run(run(settings))


if __name__ == "__main__":
    main()
