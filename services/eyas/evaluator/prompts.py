"""The held-out prompts that drafters are measured with."""

from eyas.errors import InputError
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore
from eyas.storage.tables import GENERATIONS

_COLUMNS = GENERATIONS.only("position", "turn", "split", "prompt_ids")


async def held_out(store: ObjectStore, run: str, most: int) -> list[list[int]]:
    """Ids of at most `most` prompts of the held-out samples (0: all), in their order and spread over them evenly.

    Raises:
        InputError: the run has none.
    """
    found: list[tuple[int, int, list[int]]] = []
    async for info in store.list(RunLayout(run).generations):
        if info.key.endswith(".parquet"):
            rows = _COLUMNS.rows(await store.get(info.key))
            found += [(row["position"], row["turn"], row["prompt_ids"]) for row in rows if row["split"] == "holdout"]
    if not found:
        raise InputError(f"run {run!r} has no held-out answers to measure with: create it with --holdout N")
    found.sort()
    return [found[at][2] for at in spread(len(found), most)]


def spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` indices, evenly, the first one included; 0 takes all."""
    wanted = min(count, most) if most else count
    return [at * count // wanted for at in range(wanted)]
