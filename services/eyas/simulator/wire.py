"""The JSON that vLLM 0.32 writes: bodies and events of both protocols."""

import time
from collections.abc import Sequence
from typing import Any

import orjson

from eyas.simulator.engine import Batch
from eyas.simulator.requests import Request

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


class Wire:
    """Writes the chunks of one answer."""

    def __init__(self, request: Request, request_id: str, model: str) -> None:
        self._request = request
        self._ids = request.return_token_ids
        self._head = {
            "id": f"{'chatcmpl' if request.chat else 'cmpl'}-{request_id}",
            "object": "chat.completion.chunk" if request.chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._first = True

    def chunk(self, batch: Batch, text: str) -> bytes:
        """Events for what was made since the last."""
        first, self._first = self._first, False
        return self._chat(batch, text, first) if self._request.chat else self._tokens(batch, text, first)

    def _tokens(self, batch: Batch, text: str, first: bool) -> bytes:
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": batch.finish_reason,
            "stop_reason": batch.stop_reason,
            "prompt_token_ids": self._request.prompt if first and self._ids else None,
            "token_ids": batch.ids if self._ids else None,
        }
        return event({**self._head, "choices": [choice]})

    def _chat(self, batch: Batch, text: str, first: bool) -> bytes:
        opening = b""
        if first:
            delta = {"role": "assistant", "content": ""}
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            prompt = self._request.prompt if self._ids else None
            opening = event({**self._head, "choices": [choice], "prompt_token_ids": prompt})
        choice = {
            "index": 0,
            "delta": {"content": text},
            "logprobs": None,
            "finish_reason": batch.finish_reason,
            "stop_reason": batch.stop_reason,
            "token_ids": batch.ids if self._ids else None,
        }
        return opening + event({**self._head, "choices": [choice]})

    def whole(self, ids: Sequence[int], last: Batch, text: str) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        prompt = self._request.prompt
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
            "token_ids": ids if self._ids else None,
        }
        body: dict[str, Any] = {**self._head, "choices": [choice], "kv_transfer_params": None}
        if self._request.chat:
            body["object"] = "chat.completion"
            body["prompt_token_ids"] = prompt if self._ids else None
            choice["message"] = {"role": "assistant", "content": text, "reasoning": None}
        else:
            choice["text"] = text
            choice["prompt_token_ids"] = prompt if self._ids else None
        total = len(prompt) + len(ids)
        body["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": total}
        return body
