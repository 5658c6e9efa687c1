"""`eyas check`: whether an endpoint serves the model as a run needs it."""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from eyas.cli import options, pinning
from eyas.cli.asking import Model, asked, spec_of, user
from eyas.cli.console import console
from eyas.cli.settings import Settings
from eyas.errors import EyasError, InputError
from eyas.telemetry import process
from eyas.vllm.client import ServerInfo, probe

_QUESTIONS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, and say how it works.",
    "List five cities of Europe, each with one fact.",
)
_ANSWER_TOKENS = 128
_REASONING_TOKENS = 512
_LEAST_AGREEMENT = 0.95
_MOST_DIFFERENCE = 0.1
_COLOURS = {"ok": "green", "failed": "red", "skipped": "yellow"}


@dataclass(frozen=True)
class Finding:
    """A line of the table. `outcome` is ok, failed or skipped."""

    name: str
    outcome: str
    detail: str


@options.accepting(*options.MODEL, *options.GENERATE)
def check(given: dict[str, Any], sets: options.Sets = None) -> None:
    """Check that an endpoint serves the model as a run needs it: ids, context, log-probabilities, reasoning."""
    spec = spec_of({"generation.maxTokens": _REASONING_TOKENS} | given, None, sets or [])
    if not spec.endpoints:
        raise InputError("no endpoint is given: say --endpoint URL, the base address of the vLLM to check")
    findings = asyncio.run(_findings(spec, process.settings(Settings)))
    table = Table("check", "", "found")
    for finding in findings:
        table.add_row(finding.name, Text(finding.outcome, style=_COLOURS[finding.outcome]), finding.detail)
    console().print(table)
    failed = [finding.name for finding in findings if finding.outcome == "failed"]
    if failed:
        raise EyasError(f"{spec.endpoints[0].url} is not ready for a run ({', '.join(failed)}): see the table")


async def _findings(spec: Any, settings: Settings) -> list[Finding]:
    server = await probe(spec.endpoints[0].url, settings.api_key.get_secret_value())
    findings = [Finding("endpoint", "ok", f"{spec.endpoints[0].url}, vLLM {server.version or 'of unknown version'}")]
    async with asked(spec, settings) as model:
        try:
            pinning.complete(spec, model.described.model, server, model.described.reasons)
        except InputError as error:
            return [*findings, Finding("model", "failed", str(error))]
        findings += _model(model, server)
        prompts = [await model.render(user(text)) for text in _QUESTIONS]
        try:
            answers = [(await model.answer(prompt, _ANSWER_TOKENS, greedy=True))[0] for prompt in prompts]
        except EyasError as error:
            return [*findings, Finding("ids", "failed", str(error))]
        findings.append(ids(answers, spec.model.fingerprint.vocab_size))
        findings.append(await _logprobs(model, prompts, answers))
        findings.append(await _reasoning(model, prompts[0]))
    return findings


def _model(model: Model, server: ServerInfo) -> Iterator[Finding]:
    described, pinned = model.described.model, model.spec.model.fingerprint
    yield Finding("model", "ok", f"{model.spec.model.served_name} (root {server.root or 'not said'})")
    if server.context and described.context and server.context > described.context:
        found = f"serves {server.context:,} tokens, the model's config says {described.context:,}"
        yield Finding("context", "failed", f"{found}: start the server with --max-model-len {described.context}")
    else:
        yield Finding("context", "ok", f"{pinned.context:,} tokens")


def ids(answers: list[list[int]], vocab_size: int) -> Finding:
    """Whether ids came, and are the model's. The reader has checked the prompts' echo."""
    if not all(answers):
        return Finding(
            "ids", "failed", "an answer without ids: the server must know return_token_ids (vLLM 0.10.2 or newer)"
        )
    largest = max(max(answer) for answer in answers)
    if largest >= vocab_size:
        return Finding("ids", "failed", f"id {largest} is outside the model's {vocab_size:,}: --model is another model")
    return Finding("ids", "ok", f"{sum(map(len, answers)):,} ids in {len(answers)} answers, prompts echoed")


async def _logprobs(model: Model, prompts: list[list[int]], answers: list[list[int]]) -> Finding:
    spec, name = model.spec, "log-probabilities"
    from eyas.tokenizer import reference  # noqa: PLC0415 - transformers is needed for nothing else here

    whole = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    try:
        ours = await asyncio.to_thread(
            reference.prompt_logprobs, spec.model.uri, whole, model.settings.trust_remote_code
        )
    except InputError as error:
        return Finding(name, "skipped", str(error))
    try:
        theirs = [
            await model.client.prompt_logprobs(spec.endpoints[0].url, spec.model.served_name, ids) for ids in whole
        ]
    except EyasError as error:
        return Finding(name, "failed", str(error))
    pairs = [
        pair
        for prompt, one, other in zip(prompts, ours, theirs, strict=True)
        for pair in zip(one[len(prompt) - 1 :], other[len(prompt) - 1 :], strict=True)
    ]
    return agreement(pairs)


def agreement(pairs: list[tuple[tuple[float, int], tuple[float, int]]]) -> Finding:
    """Compares (log-probability, most probable id) of transformers and of the server, id by id."""
    share = sum(ours[1] == theirs[1] for ours, theirs in pairs) / len(pairs)
    difference = math.fsum(abs(ours[0] - theirs[0]) for ours, theirs in pairs) / len(pairs)
    text = f"{share:.1%} of {len(pairs):,} most probable ids equal transformers', mean difference {difference:.4f}"
    if share < _LEAST_AGREEMENT or difference > _MOST_DIFFERENCE:
        return Finding("log-probabilities", "failed", f"{text}: other weights, template or data type than --model")
    return Finding("log-probabilities", "ok", text)


async def _reasoning(model: Model, prompt: list[int]) -> Finding:
    described = model.described
    if not described.model.HasField("reasoning_start_id"):
        return Finding("reasoning", "skipped", "the vocabulary has no reasoning markers")
    found, _ = await model.answer(prompt, _REASONING_TOKENS, greedy=True)
    parsed = await model.parse(prompt, found)
    if parsed.reasoning:
        return Finding("reasoning", "ok", f"{len(parsed.reasoning):,} characters of reasoning in an answer")
    if described.reasons:
        return Finding("reasoning", "failed", "the chat template opens a reasoning section, but the answer has none")
    return Finding("reasoning", "ok", "no reasoning, and the chat template opens none")
