"""The partial answers in storage: a hint, overwritten, so that a restart of everything at once loses little."""

import asyncio
from collections.abc import Sequence

from eyas.dispatcher.core.items import State
from eyas.dispatcher.core.partial import Partial, ids
from eyas.dispatcher.core.work import Work
from eyas.errors import DataError, NotFoundError
from eyas.storage.objects import ObjectStore
from eyas.storage.tables import PARTIALS, PartialRow


def snapshot(work: Work, stage: str) -> list[PartialRow]:
    """Everything that is held of items that are not done; those that ended but are not durable as well."""
    rows: list[PartialRow] = []
    for index, partial in work.partials.items():
        position, turn = work.items.place(index)
        leased = work.items.state(index) is State.LEASED
        rows.append(
            {
                "position": position,
                "turn": turn,
                "stage": "generate" if stage == "generate" else "extract",
                "attempt": partial.attempt,
                "prompt_ids": partial.prompt[:] if partial.prompt_known else ids(),
                "ids": partial.ids[:] if partial.prompt_known else ids(),
                "interruptions": list(partial.causes),
                "lost_tokens": partial.lost,
                "endpoint_deaths": partial.deaths,
                "generator": partial.generator if leased else "",
            }
        )
    return rows


async def write(store: ObjectStore, key: str, rows: Sequence[PartialRow]) -> None:
    """Overwrites the hint."""
    await store.put(key, await asyncio.to_thread(PARTIALS.encode, rows))


async def read(store: ObjectStore, key: str, stage: str) -> list[PartialRow]:
    """The hint for a stage; empty when there is none, or none that can be read: it is only a hint."""
    try:
        rows = await asyncio.to_thread(PARTIALS.rows, await store.get(key))
    except (NotFoundError, DataError):
        return []
    return [row for row in rows if row["stage"] == stage]


def restore(work: Work, rows: Sequence[PartialRow], now: float) -> set[str]:
    """Takes the hint in. Returns the generators that worked on its items."""
    for row in rows:
        index = work.items.index(row["position"], row["turn"])
        if index is None:
            continue
        prompt = ids(row["prompt_ids"])
        work.restore(
            Partial(
                index,
                attempt=row["attempt"],
                prompt=prompt,
                prompt_total=len(prompt),
                ids=ids(row["ids"]),
                lost=row["lost_tokens"],
                tries=len(row["interruptions"]),
                deaths=row["endpoint_deaths"],
                causes=list(row["interruptions"]),
                began=now,
            )
        )
    return {row["generator"] for row in rows if row["generator"]}
