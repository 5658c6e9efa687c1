"""The servers that are measured: the model with one drafter each, as vLLM serves it."""

import json
from pathlib import Path

from eyas.errors import DataError, InputError, NotFoundError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2 as pb
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore
from eyas.vllm import launch

_CHUNK = 64 * 1024 * 1024


async def command(name: str, spec: pb.RunSpec, host: launch.Host, store: ObjectStore, scratch: Path) -> launch.Command:
    """The vLLM that serves the model with the drafter `name`, which is fetched into `scratch` if it is a checkpoint.

    Raises:
        InputError: there is no such drafter.
        DataError: the drafter is one of other settings.
    """
    layout, training = RunLayout(spec.name), specs.training_hash(spec)
    if name == "none":
        return launch.generating(spec, host)
    if name == "ngram":
        return launch.with_ngram(spec, host)
    if name == "untrained":
        prefix = f"{layout.training(training)}/untrained"
    elif name == "trained":
        prefix = f"{layout.drafter}/vllm"
        await _check(store, layout, training)
    else:
        raise InputError(f"evaluation.drafters holds {name!r}: it may hold none, untrained, ngram and trained")
    folder = scratch / name
    if not await fetch(store, prefix, folder):
        raise InputError(f"there is no drafter at {prefix} in {store.uri}: train it first")
    return launch.with_drafter(spec, host, folder)


async def fetch(store: ObjectStore, prefix: str, folder: Path) -> int:
    """Copies the objects under a prefix into a folder, and returns how many there were."""
    count = 0
    async for info in store.list(prefix):
        path = folder / info.key.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, info.size, _CHUNK):
                file.write(await store.get_range(info.key, start, min(_CHUNK, info.size - start)))
        count += 1
    return count


async def _check(store: ObjectStore, layout: RunLayout, training: str) -> None:
    try:
        manifest = json.loads(await store.get(layout.drafter_manifest))
    except NotFoundError as error:
        raise InputError(f"there is no {layout.drafter_manifest} in {store.uri}: train the drafter first") from error
    if manifest["settings_hash"] != training:
        raise DataError(f"the drafter in {store.uri}/{layout.drafter} was trained with other settings: train it again")
