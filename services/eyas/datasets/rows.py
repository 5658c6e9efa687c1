"""From one row of a dataset to the messages that are asked: pure, and strict about what a row may hold.

Known forms, the first field that is there counts:
- `conversations`, `messages`, `conversation`: a list of `{from, value}` (ShareGPT) or `{role, content}` (OpenAI);
- `turns`: a list of what the user says (MT-Bench);
- `prompt`, `question`, `instruction` (with `input` below it): what the user says, or a list as above.

Answers in a row are dropped, since the model gives its own.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

import orjson

from eyas.storage.tables import Message

Turns = Literal["first", "all"]

FORMS = ("conversations", "messages", "conversation", "turns", "prompt", "question", "instruction")
"""Fields that hold what is asked."""

FIELDS = (*FORMS, "input", "image", "images")
"""All fields that are looked at."""

_ROLES = {
    "system": "system",
    "developer": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
}
_DETAIL = 200


class UnusableRowError(ValueError):
    """A row that cannot be imported: `reason` is a short name, `detail` what was found, shortened."""

    def __init__(self, reason: str, detail: str) -> None:
        detail = " ".join(detail.split())
        self.reason = reason
        self.detail = detail if len(detail) <= _DETAIL else detail[: _DETAIL - 1] + "…"
        super().__init__(f"{reason}: {self.detail}")


def questions(row: Any, turns: Turns) -> list[Message]:
    """The messages to ask: system text, then the first user message or all of them. Raises UnusableRowError."""
    system: list[str] = []
    asked: list[Message] = []
    for role, text in _messages(row):
        if role == "user":
            if text.strip():
                asked.append({"role": "user", "content": text})
                if turns == "first":
                    break
        elif text.strip():
            if asked:
                raise UnusableRowError("late_system", text)
            system.append(text)
    if not asked:
        raise UnusableRowError("no_user_text", _shown(row))
    return [{"role": "system", "content": "\n\n".join(system)}, *asked] if system else asked


def canonical(messages: list[Message]) -> bytes:
    """The JSON that identifies messages: keys sorted, no spaces, UTF-8."""
    return orjson.dumps(messages, option=orjson.OPT_SORT_KEYS)


def sample_id(messages: list[Message]) -> str:
    """SHA-256, hex, of the canonical JSON."""
    return hashlib.sha256(canonical(messages)).hexdigest()


def _messages(row: Any) -> Iterator[tuple[str, str]]:
    """Role and text of the system and user messages, each checked only when it is taken."""
    if not isinstance(row, dict):
        raise UnusableRowError("wrong_type", f"the row is {_kind(row)}, not an object")
    if row.get("image") or row.get("images"):
        raise UnusableRowError("image", _shown(row))
    form = next((name for name in FORMS if row.get(name) is not None), None)
    if form is None:
        raise UnusableRowError("unknown_form", f"the row has the fields {', '.join(map(str, row)) or 'none'}")
    value = row[form]
    if isinstance(value, str):
        yield from _text_form(form, value, row)
    elif not isinstance(value, list):
        raise UnusableRowError("wrong_type", f"{form} is {_kind(value)}")
    elif not value:
        raise UnusableRowError("empty", f"{form} is empty")
    else:
        for item in value:
            if form == "turns" and isinstance(item, str):
                yield "user", item
            else:
                yield from _message(item, form)


def _text_form(form: str, value: str, row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if form not in ("prompt", "question", "instruction"):
        raise UnusableRowError("wrong_type", f"{form} is a string")
    if not value.strip():
        raise UnusableRowError("empty", f"{form} is blank")
    more = row.get("input") if form == "instruction" else None
    yield "user", f"{value}\n\n{more}" if isinstance(more, str) and more.strip() else value


def _message(item: Any, form: str) -> Iterator[tuple[str, str]]:
    if not isinstance(item, dict):
        raise UnusableRowError("wrong_type", f"{form} holds {_kind(item)}")
    name = item.get("role", item.get("from"))
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise UnusableRowError("unknown_role", f"{name!r}")
    if role != "assistant":
        content = item.get("content", item.get("value"))
        yield role, content if isinstance(content, str) else _parts(content, role)


def _parts(content: Any, role: str) -> str:
    """Text of a list of parts, one below the other."""
    if content is None and role == "system":
        return ""
    if not isinstance(content, list):
        raise UnusableRowError("wrong_type", f"the text of the {role} is {_kind(content)}")
    texts = []
    for part in content:
        if isinstance(part, dict) and "image" in str(part.get("type")):
            raise UnusableRowError("image", f"a part of type {part['type']}")
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise UnusableRowError("wrong_type", f"a part without text: {part!r:.{_DETAIL}}")
        texts.append(text)
    return "\n".join(texts)


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__}"


def _shown(row: Any) -> str:
    return f"{row!r:.{_DETAIL}}"
