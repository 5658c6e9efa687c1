"""A run as one HTML file for people: built from the run's own data, opened without a network."""

from eyas.report.data import read
from eyas.report.page import render
from eyas.storage.objects import ObjectStore

__all__ = ["build"]


async def build(store: ObjectStore, run: str) -> bytes:
    """Builds report.html of a run, as far as the run has come. It writes nothing.

    Raises:
        InputError: there is no such run.
        DataError: a part of it can't be read.
    """
    return render(await read(store, run)).encode()
