"""`eyas list`: the runs of a storage, read from their data."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from eyas.cli.console import console
from eyas.errors import InputError, NotFoundError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2
from eyas.storage.layout import RunLayout
from eyas.storage.log import Log
from eyas.storage.objects import ObjectStore, open_store
from eyas.storage.tables import FAILURES, GENERATIONS, JsonFormat

_Root = Annotated[str, typer.Argument(metavar="ROOT", help="Folder or s3://bucket/prefix that holds runs.")]


def list_(root: _Root = ".") -> None:
    """List the runs in a storage, and how far each is."""
    table = Table("run", "stage", "answers", "asked for", "given up", "drafter", "model")
    for row in asyncio.run(_rows(open_store(root))) if "://" in root or Path(root).exists() else ():
        table.add_row(*row)
    if not table.rows:
        raise InputError(f"there are no runs in {root}: name the folder above them, such as out for out/demo")
    console().print(table)


async def _rows(store: ObjectStore) -> list[tuple[str, ...]]:
    rows = []
    for name in await store.folders():
        try:
            spec = specs.from_json(await store.get(RunLayout(name).spec))
        except NotFoundError:
            continue
        rows.append(await _row(store, spec))
    return rows


async def _row(store: ObjectStore, spec: run_pb2.RunSpec) -> tuple[str, ...]:
    layout = RunLayout(spec.name)
    keys = "position", "turn"
    done: set[tuple[int, int]] = set()
    async for answers in Log(store, layout.generations, ".parquet", GENERATIONS.only(*keys)).catch_up():
        done |= {(row["position"], row["turn"]) for row in answers.value}
    failed: set[tuple[int, int]] = set()
    async for failures in Log(store, layout.failures, ".parquet", FAILURES.only(*keys, "stage")).catch_up():
        failed |= {(row["position"], row["turn"]) for row in failures.value if row["stage"] == "generate"}
    stage = "generate"
    async for entry in Log(store, layout.control, ".json", JsonFormat()).catch_up():
        stage = str(entry.value.get("entered", stage))
    drafter = (
        "yes" if [info async for info in store.list(layout.drafter) if info.key == layout.drafter_manifest] else ""
    )
    asked = spec.dataset.generations
    return (
        spec.name,
        stage,
        f"{len(done):,}",
        f"{asked:,}",
        f"{len(failed - done):,}",
        drafter,
        spec.model.served_name or spec.model.uri,
    )
