"""Ids of an answer to reasoning, content and tool calls. Pure: the decoder is passed in.

Reasoning is found by ids, never by text: a model can write the letters of a marker without meaning it.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

REASONING = (
    ("<think>", "</think>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
)
"""Pairs that open and close a reasoning section in known vocabularies; the first pair that a vocabulary has counts."""

TOOL_CALL = ("<tool_call>", "</tool_call>")

_TOOL_CALL = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Markers:
    """Ids with a meaning of their own."""

    reasoning_start: int | None
    reasoning_end: int | None
    special: frozenset[int]
    """Ids that are not text, such as the end of a turn."""


@dataclass(frozen=True)
class Answer:
    """An answer as a message."""

    reasoning: str
    """Without its markers."""
    content: str
    tool_calls: str
    """JSON array in the form of OpenAI's `tool_calls`; empty when there are none."""


def parse(
    ids: Sequence[int], prompt_tail: Sequence[int], markers: Markers, decode: Callable[[list[int]], str]
) -> Answer:
    """Reads an answer.

    `prompt_tail` is the end of the prompt: it may end in an open reasoning section. An answer that was cut inside its
    reasoning is all reasoning, with empty content. Without a reasoning section the content is exactly the decoded ids,
    because the next turn is rendered from it.
    """
    reasoning_ids, content_ids = split(ids, opened(prompt_tail, markers), markers)
    reasoning = decode([index for index in reasoning_ids if index not in markers.special]).strip()
    content = decode([index for index in content_ids if index not in markers.special])
    if reasoning_ids:
        content = content.lstrip("\n")
    content, calls = tool_calls(content)
    return Answer(reasoning, content, json.dumps(calls, ensure_ascii=False) if calls else "")


def opened(prompt_tail: Sequence[int], markers: Markers) -> bool:
    """Whether a prompt ends inside a reasoning section."""
    for index in reversed(prompt_tail):
        if index in (markers.reasoning_start, markers.reasoning_end):
            return index == markers.reasoning_start
    return False


def split(ids: Sequence[int], inside: bool, markers: Markers) -> tuple[list[int], list[int]]:
    """Divides ids into reasoning and content; markers are in neither, every other id is in one, in order.

    A first closing marker that nothing opened closes what came before it: some templates open the section in a part of
    the prompt that the caller does not have.
    """
    reasoning: list[int] = []
    content: list[int] = []
    seen = inside
    for index in ids:
        if index == markers.reasoning_start:
            inside = seen = True
        elif index == markers.reasoning_end:
            if not seen:
                reasoning, content = content, []
            inside, seen = False, True
        else:
            (reasoning if inside else content).append(index)
    return reasoning, content


def tool_calls(content: str) -> tuple[str, list[dict[str, Any]]]:
    """Takes `<tool_call>{"name": …, "arguments": …}</tool_call>` out of a text; what is malformed stays in it."""
    calls: list[dict[str, Any]] = []

    def take(match: re.Match[str]) -> str:
        call = _call(match[1])
        if call is None:
            return match[0]
        calls.append(call)
        return ""

    rest = _TOOL_CALL.sub(take, content)
    return rest, calls


def _call(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", "function": {"name": value["name"], "arguments": arguments}}
