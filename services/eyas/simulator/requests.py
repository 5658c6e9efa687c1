"""Requests as vLLM 0.32 reads them: its defaults, clamps and refusals. Unknown fields are ignored, as there."""

from dataclasses import dataclass
from typing import Any

from eyas.simulator.model import SimulatedModel

_DEFAULT_MAX_TOKENS = 16  # of /v1/completions


class RefusedError(Exception):
    """A request is refused with an HTTP status and vLLM's error body."""

    def __init__(self, status: int, message: str, kind: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is accepted."""

    chat: bool
    prompt: list[int]
    max_tokens: int
    """Clamped to what the context leaves."""
    stop_token_ids: frozenset[int]
    stream: bool
    return_token_ids: bool
    hidden_states_key: str
    """Of the object, relative to the storage; empty when none is wanted."""
    out_of_vocabulary: bool
    """Found by vLLM only once it streams."""


def read(body: Any, chat: bool, served: str, context: int, model: SimulatedModel) -> Request:
    """Reads a JSON body. Raises RefusedError."""
    if not isinstance(body, dict):
        raise _bad("Input should be a valid dictionary", "body")
    if body.get("model", served) != served:
        raise RefusedError(404, f"The model `{body['model']}` does not exist.", "NotFoundError", "model")
    prompt = _messages(body, model) if chat else _prompt(body, model)
    max_tokens = body.get("max_completion_tokens") or body.get("max_tokens")
    if max_tokens is None:
        max_tokens = context if chat else _DEFAULT_MAX_TOKENS
    elif not isinstance(max_tokens, int) or max_tokens < 1:
        raise RefusedError(400, f"max_tokens must be at least 1, got {max_tokens}.", "BadRequestError", "max_tokens")
    elif max_tokens > context:
        raise RefusedError(
            400, f"max_tokens={max_tokens} cannot be greater than {context}.", "BadRequestError", "max_tokens"
        )
    if len(prompt) > context:
        message = f"The model's maximum context length is {context}. (parameter=input_tokens, value={len(prompt)})"
        raise RefusedError(400, message, "BadRequestError", "input_tokens")
    if len(prompt) == context:
        raise RefusedError(400, "max_tokens must be at least 1, got 0.", "BadRequestError", "max_tokens")
    return Request(
        chat=chat,
        prompt=prompt,
        max_tokens=min(max_tokens, context - len(prompt)),
        stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
        stream=bool(body.get("stream")),
        return_token_ids=bool(body.get("return_token_ids")),
        hidden_states_key=(body.get("kv_transfer_params") or {}).get("eyas_key", ""),
        out_of_vocabulary=max(prompt) >= model.vocab_size,
    )


def vocabulary_error() -> RefusedError:
    """How an id outside the vocabulary is refused."""
    return RefusedError(400, "Token id is out of vocabulary", "BadRequestError", None)


def _prompt(body: dict[str, Any], model: SimulatedModel) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return model.render([{"role": "user", "content": prompt}])
    if not isinstance(prompt, list) or not prompt or not all(isinstance(token, int) and token >= 0 for token in prompt):
        raise _bad("Input should be a valid list of token ids", "body.prompt")
    return prompt


def _messages(body: dict[str, Any], model: SimulatedModel) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("Input should be a valid list of messages", "body.messages")
    try:
        return model.render(messages)
    except (KeyError, TypeError) as error:
        raise _bad("a message has a role and content", "body.messages") from error


def _bad(message: str, param: str) -> RefusedError:
    return RefusedError(400, message, "Bad Request", param)
