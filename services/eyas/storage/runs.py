"""The spec of a run as it is now: what was asked, with every `set` since applied."""

from eyas.errors import DataError, InputError, NotFoundError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2 as pb
from eyas.storage.layout import RunLayout
from eyas.storage.log import Log
from eyas.storage.objects import ObjectStore
from eyas.storage.tables import JsonFormat


async def read_spec(store: ObjectStore, run: str) -> pb.RunSpec:
    """Reads spec.json and the control log.

    Raises:
        InputError: there is no such run.
        DataError: its spec can't be read.
    """
    layout = RunLayout(run)
    try:
        data = await store.get(layout.spec)
    except NotFoundError as error:
        raise InputError(f"there is no run {run!r} in {store.uri}: name one of the folders there") from error
    try:
        spec = specs.from_json(data)
    except (ValueError, InputError) as error:
        raise DataError(f"{store.uri}: {layout.spec} is not a spec of this version: {error}") from error
    async for part in Log(store, layout.control, ".json", JsonFormat()).catch_up():
        if "set" in part.value:
            spec = specs.change(spec, part.value["set"].get("values", {}))
    return spec
