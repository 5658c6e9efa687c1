"""The tokenizer service, waited for as long as it is away."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from grpc import aio

from eyas.dispatch.v1 import dispatch_pb2
from eyas.errors import ServiceError
from eyas.rpc.errors import translated
from eyas.tokenizer.v1 import tokenizer_pb2 as pb
from eyas.tokenizer.v1 import tokenizer_pb2_grpc

_DEADLINE = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_PROMPT_TAIL = 64

_Reply = TypeVar("_Reply")


class Tokenizing:
    """Renders prompts and reads answers. Raises InputError when the model's template rejects what it is given."""

    def __init__(self, channel: aio.Channel) -> None:
        self._stub = tokenizer_pb2_grpc.TokenizerStub(channel)
        self._log = structlog.get_logger()

    async def render(self, messages: str, chat_template_kwargs: str) -> "array[int]":
        """Ids of a conversation, with the generation prompt at the end."""
        request = pb.RenderRequest(messages=messages, chat_template_kwargs=chat_template_kwargs)
        reply = await self._patiently(lambda: self._stub.Render(request, timeout=_DEADLINE))
        return array("I", reply.ids)

    async def parse(self, prompt: "array[int]", ids: "array[int]") -> dispatch_pb2.Message:
        """An answer as a message."""
        request = pb.ParseRequest(ids=ids, prompt_ids=prompt[-_PROMPT_TAIL:])
        reply = await self._patiently(lambda: self._stub.Parse(request, timeout=_DEADLINE))
        return dispatch_pb2.Message(reasoning=reply.reasoning, content=reply.content, tool_calls=reply.tool_calls)

    async def _patiently(self, call: Callable[[], Awaitable[_Reply]]) -> _Reply:
        pause = _FIRST_PAUSE
        while True:
            try:
                with translated("tokenizer"):
                    return await call()
            except ServiceError as error:
                self._log.warning("waiting for the tokenizer", reason=str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
