"""What the demo found, read back from the run's own data."""

from collections import Counter, defaultdict
from datetime import datetime
from itertools import pairwise
from typing import Any, TypedDict

import orjson

from eyas.storage.layout import RunLayout
from eyas.storage.log import Log
from eyas.storage.objects import ObjectStore
from eyas.storage.tables import FAILURES, GENERATIONS, SAMPLES, JsonFormat

SPECULATING = ("untrained", "ngram", "trained")


class Result(TypedDict):
    """result.json. Shares are of 1, lengths in tokens, times in seconds."""

    samples: int
    rows: int
    distinct: int
    ok: int
    truncated: int
    failed: int
    tokens: int
    useful_token_share: float
    seconds: dict[str, float]
    acceptance_length: dict[str, float]
    repetition_share: dict[str, float]
    greedy_agreement: dict[str, float]


async def read(store: ObjectStore, run: str) -> Result:
    """Reads a finished run."""
    layout = RunLayout(run)
    samples = 0
    async for info in store.list(layout.samples):
        samples += SAMPLES.read(await store.get(info.key)).num_rows
    columns = GENERATIONS.only("position", "turn", "finish_reason", "ids", "lost_tokens")
    reasons: Counter[str] = Counter()
    keys: list[tuple[int, int]] = []
    tokens = lost = 0
    async for part in Log(store, layout.generations, ".parquet", columns).catch_up():
        for row in part.value:
            reasons[row["finish_reason"]] += 1
            keys.append((row["position"], row["turn"]))
            tokens += len(row["ids"])
            lost += row["lost_tokens"]
    failed: set[tuple[int, int]] = set()
    async for failure in Log(store, layout.failures, ".parquet", FAILURES).catch_up():
        failed |= {(row["position"], row["turn"]) for row in failure.value}
    measured: dict[str, Any] = orjson.loads(await store.get(layout.evaluation_result))["drafters"]
    return Result(
        samples=samples,
        rows=len(keys),
        distinct=len(set(keys)),
        ok=reasons["stop"],
        truncated=reasons["length"],
        failed=len(failed - set(keys)),
        tokens=tokens,
        useful_token_share=tokens / max(tokens + lost, 1),
        seconds=await stage_seconds(store, layout),
        acceptance_length={name: measured[name]["acceptance_length"] for name in SPECULATING},
        repetition_share={name: values["repetition_share"] for name, values in measured.items()},
        greedy_agreement={name: measured[name]["greedy_agreement"] for name in SPECULATING},
    )


async def stage_seconds(store: ObjectStore, layout: RunLayout) -> dict[str, float]:
    """Seconds from entering each stage to entering the next, pauses included, from the control log.

    The first stage begins with the first entry.
    """
    entries = [part.value async for part in Log(store, layout.control, ".json", JsonFormat()).catch_up()]
    entered = [("generate", datetime.fromisoformat(entries[0]["at"]))] + [
        (str(entry["entered"]), datetime.fromisoformat(entry["at"])) for entry in entries if "entered" in entry
    ]
    seconds: defaultdict[str, float] = defaultdict(float)
    for (stage, start), (_, end) in pairwise(entered):
        seconds[stage] += (end - start).total_seconds()
    return {stage: round(value, 1) for stage, value in seconds.items()}
