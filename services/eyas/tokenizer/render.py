"""Messages to ids: the model's chat template, as transformers applies it."""

import json
from typing import Any

from jinja2.exceptions import TemplateError

from eyas.errors import InputError

_OURS = (
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
)


def render(tokenizer: Any, messages: str, chat_template_kwargs: str) -> list[int]:
    """Ids of the prompt, generation prompt included.

    `messages` is a JSON array of {"role", "content"}, `chat_template_kwargs` a JSON object or empty. Raises InputError
    with the template's own sentence when it rejects the conversation.
    """
    conversation = _conversation(messages)
    arguments = _arguments(chat_template_kwargs)
    try:
        ids = tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=True, return_dict=False, **arguments
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise InputError(f"the chat template rejects the conversation: {' '.join(str(error).split())}") from error
    return [int(index) for index in ids]


def _conversation(messages: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(messages)
    except ValueError as error:
        raise InputError(f"the messages are not JSON: {error}") from error
    if not isinstance(value, list) or not value:
        raise InputError("the messages must be a JSON array of at least one message")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise InputError("each message must be an object with a role and a content")
    return value


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise InputError(f"generation.chatTemplateKwargs is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError("generation.chatTemplateKwargs must be a JSON object")
    for name in _OURS:
        if name in value:
            raise InputError(f"generation.chatTemplateKwargs cannot hold {name!r}: eyas sets it; remove it")
    return value
