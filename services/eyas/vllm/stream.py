"""Reads the streams of /v1/completions and /v1/chat/completions: bytes in, ids and an ending out. No I/O.

Done means finish_reason `stop` or `length`, and nothing else. HTTP 200 and [DONE] prove nothing: a server that is
killed, drains or fails sends `abort`, an error event, or nothing at all under both.
"""

from array import array
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.vllm.interruption import InterruptionError, by_event, plain

Ids: TypeAlias = "array[int]"
"""Token ids, of type code "I": four bytes an id, and nothing but an id fits in."""

_LONGEST_LINE = 64 * 1024 * 1024
_FINISH = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError)  # of JSON of another shape


def ids_of(values: Any = ()) -> Ids:
    """Token ids from any iterable of integers. Raises TypeError, OverflowError or ValueError for anything else."""
    return array("I", values)


class Splitter:
    """Server-sent events, split on bytes: the data of each `data:` line. Events whose data has several lines are not
    joined, since no JSON that a model server writes holds a newline.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Takes what was read, returns what it completes. Raises ValueError when a line never ends."""
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _LONGEST_LINE:
            raise ValueError("a line never ends")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class StreamReader:
    """What both protocols have in common. A subclass reads the one choice of an event."""

    def __init__(self) -> None:
        self._splitter = Splitter()
        self.finish_reason: pb.FinishReason.ValueType = pb.FINISH_REASON_UNSPECIFIED
        self.stop_reason = ""
        """Stop id as text; empty when the model ended by its own."""
        self.interruption: InterruptionError | None = None
        self.progress = 0
        """Tokens so far; events with text where a server gives no ids."""
        self.chunks = 0
        """Events so far."""

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to expect."""
        return self.finish_reason != pb.FINISH_REASON_UNSPECIFIED or self.interruption is not None

    def feed(self, data: bytes) -> Ids:
        """Takes what was read, returns the ids in it; those before an interruption too."""
        fresh = ids_of()
        try:
            for payload in self._splitter.feed(data):
                if payload == b"[DONE]":
                    self.close("the stream ends with [DONE] and no finish_reason")
                else:
                    self._event(orjson.loads(payload), fresh)
                if self.ended:
                    break
        except _UNREADABLE as error:
            self._interrupt(pb.CAUSE_PROTOCOL, f"the server sends what is no event of a completion: {plain(error)}")
        return fresh

    def whole(self, body: bytes) -> Ids:
        """Takes the body of an answer that is not streamed: one event."""
        fresh = ids_of()
        try:
            self._event(orjson.loads(body), fresh)
        except _UNREADABLE as error:
            self._interrupt(pb.CAUSE_PROTOCOL, f"the server sends what is no completion: {plain(error)}")
        self.close("the answer has no finish_reason")
        return fresh

    def close(self, why: str) -> None:
        """The stream ended."""
        if not self.ended:
            self._interrupt(pb.CAUSE_STREAM, why)

    def _event(self, event: dict[str, Any], fresh: Ids) -> None:
        choices = event.get("choices")
        if choices:
            self.chunks += 1
            self._choice(choices[0], fresh)
        elif "error" in event:
            self.interruption = by_event(event["error"])
        elif choices is None:
            raise ValueError("neither choices nor an error")

    def _choice(self, choice: dict[str, Any], fresh: Ids) -> None:
        raise NotImplementedError

    def _finish(self, choice: dict[str, Any]) -> None:
        reason = choice.get("finish_reason")
        if reason is None:
            return
        if reason in _FINISH:
            self.finish_reason = _FINISH[reason]
            stop = choice.get("stop_reason")
            self.stop_reason = "" if stop is None else str(stop)
        else:
            self._interrupt(pb.CAUSE_STREAM, f"the server ends the answer with finish_reason {plain(reason)}")

    def _interrupt(self, cause: pb.Cause.ValueType, detail: str) -> None:
        self.interruption = InterruptionError(cause, detail)


class TokenReader(StreamReader):
    """Reads /v1/completions with return_token_ids: ids out, and proof that the ids that went in are the prompt."""

    def __init__(self, prompt: list[int]) -> None:
        super().__init__()
        self._prompt: list[int] | None = prompt

    def _choice(self, choice: dict[str, Any], fresh: Ids) -> None:
        if self._prompt is not None:
            returned = choice.get("prompt_token_ids")
            if returned != self._prompt:
                what = "does not return the prompt's ids" if returned is None else "returns other ids as the prompt"
                self._interrupt(pb.CAUSE_PROTOCOL, f"the server {what}: it must be a vLLM with return_token_ids")
                return
            self._prompt = None
        ids = choice["token_ids"]
        fresh.fromlist(ids)
        self.progress += len(ids)
        self._finish(choice)


@dataclass
class ToolCall:
    """A call of a tool, put together from its pieces."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class ChatText:
    """An answer as text, in the pieces that came."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    tool_calls: dict[int, ToolCall] = field(default_factory=dict)

    def message(self) -> pb.Message:
        """The answer as a message."""
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for _, call in sorted(self.tool_calls.items())
        ]
        return pb.Message(
            reasoning="".join(self.reasoning),
            content="".join(self.content),
            tool_calls=orjson.dumps(calls).decode() if calls else "",
        )


class ChatReader(StreamReader):
    """Reads /v1/chat/completions: text, and ids from a server that gives them. The server's name for reasoning is
    `reasoning` or `reasoning_content`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.prompt = ids_of()
        """Ids of the prompt; empty when the server doesn't say."""
        self.text = ChatText()

    def _event(self, event: dict[str, Any], fresh: Ids) -> None:
        if event.get("prompt_token_ids"):
            self.prompt = ids_of(event["prompt_token_ids"])
        super()._event(event, fresh)

    def _choice(self, choice: dict[str, Any], fresh: Ids) -> None:
        delta = choice.get("delta") or {}
        reasoning = delta.get("reasoning") or delta.get("reasoning_content")
        if reasoning:
            self.text.reasoning.append(reasoning)
        if delta.get("content"):
            self.text.content.append(delta["content"])
        for piece in delta.get("tool_calls") or ():
            call, function = self.text.tool_calls.setdefault(piece["index"], ToolCall()), piece.get("function") or {}
            call.id += piece.get("id") or ""
            call.name += function.get("name") or ""
            call.arguments += function.get("arguments") or ""
        ids = choice.get("token_ids")
        if ids:
            fresh.fromlist(ids)
            self.progress += len(ids)
        elif reasoning or delta.get("content") or delta.get("tool_calls"):
            self.progress += 1
        self._finish(choice)
