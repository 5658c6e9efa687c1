"""`eyas plan`: what a run would take, before anything starts."""

import asyncio
import shutil
import statistics
import time
from typing import Annotated, Any

import typer
from rich.table import Table

from eyas.cli import describing, options, pinning
from eyas.cli.asking import Model, asked, spec_of
from eyas.cli.console import console
from eyas.cli.estimate import Estimate, Probe, size
from eyas.cli.place import Place
from eyas.cli.settings import Settings
from eyas.datasets import Imported, load_for
from eyas.run.v1 import run_pb2 as pb
from eyas.telemetry import process

_RENDERED = 500
"""Prompts that are rendered to estimate all."""
_PROBED = 8
_PROBE_TOKENS = 256

_Rate = Annotated[float | None, typer.Option("--rate", help="Tokens a second that the server makes, if known.")]
_Mean = Annotated[int | None, typer.Option("--mean-length", help="Mean length of an answer in tokens, if known.")]


@options.accepting(*options.MODEL, *options.DATA, *options.GENERATE)
def plan(
    given: dict[str, Any],
    output: options.Output,
    overrides: options.Overrides = None,
    *,
    file: options.SpecFile = None,
    sets: options.Sets = None,
    holdout: options.Holdout = None,
    rate: _Rate = None,
    mean_length: _Mean = None,
) -> None:
    """Say what a run would take: rows, tokens, time and room. Nothing is written."""
    spec = spec_of(given | options.holdout(holdout), file, [*(sets or []), *(overrides or [])])
    place = Place.of(output)
    with load_for(spec.dataset) as imported:
        imported.fill(spec.dataset)
        estimate = asyncio.run(_estimate(spec, imported, rate, mean_length))
        facts = [*_counts(imported), *estimate.facts(), ("hidden states", _room(estimate, place))]
    table = Table.grid(padding=(0, 3))
    for name, value in facts:
        table.add_row(name, value)
    console().print(table)


async def _estimate(spec: pb.RunSpec, imported: Imported, rate: float | None, mean_length: int | None) -> Estimate:
    settings = process.settings(Settings)
    server = await describing.probe(spec, settings.api_key.get_secret_value())
    async with asked(spec, settings) as model:
        pinning.complete(spec, model.described.model, server, model.described.reasons)
        every = max(1, len(imported) // _RENDERED)
        chosen = [sample.messages for number, sample in enumerate(imported) if number % every == 0]
        prompts = [await model.render(messages) for messages in chosen]
        wanted = spec.endpoints and not (rate and mean_length)
        probe = await _probe(model, prompts[:_PROBED]) if wanted else None
    return Estimate(spec, [len(prompt) for prompt in prompts], probe, rate, mean_length)


async def _probe(model: Model, prompts: list[list[int]]) -> Probe:
    limit = min(_PROBE_TOKENS, model.spec.generation.max_tokens)
    begin = time.monotonic()
    answers = await asyncio.gather(*(model.answer(prompt, limit, greedy=False) for prompt in prompts))
    seconds = time.monotonic() - begin
    lengths = [len(ids) for ids, _ in answers]
    cut = sum(length >= limit for length in lengths)
    return Probe(len(lengths), sum(lengths) / seconds, statistics.mean(lengths), cut)


def _counts(imported: Imported) -> list[tuple[str, str]]:
    reasons = ", ".join(f"{name} {count:,}" for name, count in imported.rejected_counts.items())
    return [
        ("conversations", f"{imported.train:,} to train on, {imported.holdout:,} held out"),
        ("answers to generate", f"{imported.generations:,}"),
        ("rows that cannot be used", f"{len(imported.rejected):,}" + (f" ({reasons})" if reasons else "")),
        ("repeated rows dropped", f"{imported.duplicates:,}"),
    ]


def _room(estimate: Estimate, place: Place) -> str:
    needed = estimate.hidden_states()
    text = f"about {size(needed)}, {size(estimate.row())} a token"
    if place.folder is None:
        return text
    free = shutil.disk_usage(next(path for path in (place.folder, *place.folder.parents) if path.exists())).free
    return f"{text}; {size(free)} are free" + (", which is not enough" if needed > free else "")
