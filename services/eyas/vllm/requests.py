"""What is asked of a model server, and the JSON body that asks it.

Every field that draws tokens is sent in every request: a server fills what is missing from the model's
generation_config.json, and max_tokens with 16. A misspelt field it ignores without a word.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from eyas.run.v1 import run_pb2


@dataclass(frozen=True, slots=True)
class TokensRequest:
    """An answer to ids, as ids."""

    model: str
    """Name at the server."""
    prompt: list[int]
    max_tokens: int
    sampling: run_pb2.Sampling
    priority: int = 0
    request_id: str = ""
    """Shows in the server's log."""

    path = "/v1/completions"

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "stream": True,
            "return_token_ids": True,
            **_sampling(self.sampling),
            **_priority(self.priority),
        }


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """An answer to messages, as text."""

    model: str
    messages: str
    """JSON array."""
    chat_template_kwargs: str
    """JSON object."""
    max_tokens: int
    sampling: run_pb2.Sampling
    priority: int = 0
    request_id: str = ""

    path = "/v1/chat/completions"

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        sampling = self.sampling
        body = {
            "model": self.model,
            "messages": orjson.Fragment(self.messages),
            "max_tokens": self.max_tokens,
            "stream": True,
            "return_token_ids": True,
            **_sampling(sampling),
            **_priority(self.priority),
        }
        if self.chat_template_kwargs not in ("", "{}"):
            body["chat_template_kwargs"] = orjson.Fragment(self.chat_template_kwargs)
        if sampling.HasField("presence_penalty"):
            body["presence_penalty"] = sampling.presence_penalty
        if sampling.HasField("frequency_penalty"):
            body["frequency_penalty"] = sampling.frequency_penalty
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        return body


@dataclass(frozen=True, slots=True)
class ExtractionRequest:
    """Hidden states of ids, stored by the server's connector (`eyas.vllm.connector`) under a key.

    Not streamed, and one token: the states are the prefill's, and no stream carries kv_transfer_params.
    """

    model: str
    prompt: list[int]
    key: str
    """Of the object, relative to the storage."""
    priority: int = 0
    request_id: str = ""

    path = "/v1/completions"

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": 1,
            "stream": False,
            "return_token_ids": True,
            "kv_transfer_params": {"eyas_key": self.key, "eyas_rows": len(self.prompt)},
            **_sampling(run_pb2.Sampling(temperature=0.0)),
            **_priority(self.priority),
        }


Request: TypeAlias = TokensRequest | ChatRequest | ExtractionRequest


def _sampling(sampling: run_pb2.Sampling) -> dict[str, Any]:
    def value(name: str, neutral: float) -> Any:
        return getattr(sampling, name) if sampling.HasField(name) else neutral  # type: ignore[arg-type]

    return {
        "temperature": value("temperature", 1.0),
        "top_p": value("top_p", 1.0),
        "top_k": value("top_k", 0),
        "min_p": value("min_p", 0.0),
        "repetition_penalty": value("repetition_penalty", 1.0),
        "stop_token_ids": list(sampling.stop_token_ids),
    }


def _priority(priority: int) -> dict[str, int]:
    return {"priority": priority} if priority else {}
