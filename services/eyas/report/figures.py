"""From a run's data to the numbers of its charts. Pure: no I/O, no HTML."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eyas.report.data import Answer, RunData
from eyas.report.svg import DASH, Series, number

TIMEOUTS = ("timeout_connect", "timeout_first_token", "timeout_stall", "timeout_total")
"""Phases whose timeouts are always shown, also at 0."""

_BINS = 20
_MOMENTS = 60
_STEPS = 200


@dataclass(frozen=True)
class Bars:
    """Categories, and one value a category for each series."""

    categories: list[str]
    series: list[Series]


@dataclass(frozen=True)
class Lines:
    """Common x, and one value an x for each series."""

    x: list[float]
    series: list[Series]


@dataclass(frozen=True)
class Counts:
    """Generations of a run, by what became of them."""

    asked: int
    ok: int
    truncated: int
    failed: int
    tokens: int

    @property
    def open(self) -> int:
        """Neither answered nor given up."""
        return max(0, self.asked - self.ok - self.truncated - self.failed)


def counts(data: RunData) -> Counts:
    """What was asked and what became of it."""
    reasons = Counter(answer.finish_reason for answer in data.answers)
    return Counts(
        asked=sum(sample.turns for sample in data.samples),
        ok=reasons["stop"],
        truncated=reasons["length"],
        failed=sum(row["stage"] == "generate" for row in data.failures),
        tokens=sum(answer.tokens for answer in data.answers),
    )


def prompt_lengths(data: RunData) -> Bars:
    """Characters of what was asked: samples answered in full, with a turn given up, and open."""
    answered = Counter(answer.sample_id for answer in data.answers)
    lost = {row["sample_id"] for row in data.failures if row["stage"] == "generate"}
    groups: dict[str, list[int]] = {"kept": [], "lost": [], "open": []}
    for sample in data.samples:
        whole = answered[sample.sample_id] >= sample.turns
        groups["kept" if whole else "lost" if sample.sample_id in lost else "open"].append(sample.characters)
    return _histogram(groups, {"kept": "kept", "lost": "given up", "open": "not answered yet"})


def answer_lengths(data: RunData) -> Bars:
    """Tokens of the answers, by how they ended."""
    groups = {
        reason: [answer.tokens for answer in data.answers if answer.finish_reason == reason]
        for reason in ("stop", "length")
    }
    return _histogram(groups, {"stop": "ended by the model", "length": "cut at the limit"})


def _histogram(groups: dict[str, list[int]], names: dict[str, str]) -> Bars:
    """Groups over common bins of a round width, which is the same for all."""
    highest = max((value for values in groups.values() for value in values), default=0)
    width = _round_width(highest / _BINS)
    bins = highest // width + 1
    series = []
    for role, values in groups.items():
        found = Counter(value // width for value in values)
        series.append(Series(names[role], role, [found[at] for at in range(bins)]))
    return Bars([f"{number(at * width)}{DASH}{number((at + 1) * width - 1)}" for at in range(bins)], series)


def _round_width(least: float) -> int:
    power = 10 ** math.floor(math.log10(max(1.0, least)))
    return next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= least)


def throughput(answers: Sequence[Answer]) -> tuple[Lines, Lines]:
    """Tokens a second, and answers at once, over the minutes since the first started.

    An answer's tokens are spread evenly over its time; the time in which nothing was asked counts too.
    """
    if not answers:
        return Lines([], []), Lines([], [])
    start = min(answer.started for answer in answers)
    width = max(1e-3, (max(answer.finished for answer in answers) - start) / _MOMENTS)
    tokens, busy = [0.0] * _MOMENTS, [0.0] * _MOMENTS
    for answer in answers:
        begin, end = (answer.started - start) / width, max(answer.finished - start, 1e-9) / width
        rate = answer.tokens / max(end - begin, 1e-9)
        for at in range(int(begin), min(_MOMENTS, math.ceil(end))):
            part = min(end, at + 1) - max(begin, at)
            busy[at] += part
            tokens[at] += part * rate
    minutes = [(at + 0.5) * width / 60 for at in range(_MOMENTS)]
    return (
        Lines(minutes, [Series("tokens/s", "kept", [value / width for value in tokens])]),
        Lines(minutes, [Series("answers at once", "kept", list(busy))]),
    )


def causes(data: RunData) -> Bars:
    """Attempts that were interrupted and went on, and items given up, by cause; timeouts by phase first."""
    recovered = Counter(cause for answer in data.answers for cause in answer.interruptions)
    lost = Counter(row["reason"] for row in data.failures)
    names = [*TIMEOUTS, *sorted((recovered.keys() | lost.keys()) - set(TIMEOUTS))]
    return Bars(
        [name.replace("_", " ").replace("timeout ", "timeout: ") for name in names],
        [
            Series("interrupted, then answered", "kept", [recovered[name] for name in names]),
            Series("given up", "lost", [lost[name] for name in names]),
        ],
    )


def losses(steps: Sequence[dict[str, Any]]) -> Lines:
    """The training's loss by step, with the held-out loss where it was measured."""
    chosen = _thinned(steps, keep="held_out")
    series = [Series("training", "kept", [step["loss"] for step in chosen])]
    held = [(step.get("held_out") or {}).get("loss") for step in chosen]
    if any(value is not None for value in held):
        series.append(Series("held out", "lost", held))
    return Lines([step["step"] for step in chosen], series)


def accuracies(steps: Sequence[dict[str, Any]]) -> Lines:
    """Accuracy of each drafted token, by step of the training."""
    chosen = _thinned(steps)
    depth = max((len(step["accuracy_by_step"]) for step in chosen), default=0)
    return Lines(
        [step["step"] for step in chosen],
        [
            Series(f"token {at + 1}", f"step-{at}", [_at(step["accuracy_by_step"], at) for step in chosen])
            for at in range(depth)
        ],
    )


def estimates(steps: Sequence[dict[str, Any]]) -> Lines | None:
    """Acceptance length as the training estimates it from its accuracies; None when it was not logged."""
    chosen = [step for step in _thinned(steps, keep="held_out") if "acceptance_length" in step]
    if not chosen:
        return None
    series = [Series("training", "kept", [step["acceptance_length"] for step in chosen])]
    held = [(step.get("held_out") or {}).get("acceptance_length") for step in chosen]
    if any(value is not None for value in held):
        series.append(Series("held out", "lost", held))
    return Lines([step["step"] for step in chosen], series)


def _thinned(steps: Sequence[dict[str, Any]], keep: str = "") -> list[dict[str, Any]]:
    """At most some 200 steps, evenly; all that hold `keep`, and the last."""
    every = max(1, math.ceil(len(steps) / _STEPS))
    return [
        step for at, step in enumerate(steps) if at % every == 0 or at == len(steps) - 1 or (keep and step.get(keep))
    ]


def _at(values: Sequence[float], place: int) -> float | None:
    return values[place] if place < len(values) else None


def deciles(summary: dict[str, Any]) -> Bars | None:
    """Tokens generated and supervised, by length of the sequence; None before the training said so."""
    found = summary.get("length_deciles")
    if not found:
        return None
    return Bars(
        [f"\u2264{number(part['longest'])}" for part in found],
        [
            Series("generated", "open", [part["generated"] for part in found]),
            Series("supervised", "kept", [part["supervised"] for part in found]),
        ],
    )


def by_position(drafters: dict[str, dict[str, Any]]) -> Bars:
    """Share of the drafts whose token at each position was accepted."""
    drafting = {name: measured["acceptance_by_position"] for name, measured in drafters.items()}
    depth = max((len(values) for values in drafting.values()), default=0)
    return Bars(
        [f"token {at + 1}" for at in range(depth)],
        [Series(name, name, [_at(values, at) for at in range(depth)]) for name, values in drafting.items() if values],
    )


def speeds(drafters: dict[str, dict[str, Any]]) -> Bars:
    """Tokens a second with each drafter."""
    speed = {name: measured["tokens_per_second"] for name, measured in drafters.items()}
    return Bars(
        list(speed), [Series(name, name, [speed[name] if at == name else None for at in speed]) for name in speed]
    )


def longest_kept(data: RunData) -> float | None:
    """Share of the longest tenth of the prompts that was kept; None while nothing was asked."""
    lost = {row["sample_id"] for row in data.failures if row["stage"] == "generate"}
    lengths = sorted(sample.characters for sample in data.samples)
    if not lengths:
        return None
    least = lengths[math.floor(0.9 * (len(lengths) - 1))]
    longest = [sample for sample in data.samples if sample.characters >= least]
    return 1 - sum(sample.sample_id in lost for sample in longest) / len(longest)
