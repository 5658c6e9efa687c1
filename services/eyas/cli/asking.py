"""The tokenizer and the endpoint of a model, for commands that ask a few things and keep nothing."""

from __future__ import annotations  # the stubs of gRPC know more types than its modules

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.cli import describing, options
from eyas.cli.describing import Description
from eyas.cli.local.claim import transient
from eyas.cli.local.stack import Stack
from eyas.cli.place import Place
from eyas.cli.settings import Settings
from eyas.rpc.channels import open_channel
from eyas.rpc.errors import translated
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2
from eyas.tokenizer.v1 import tokenizer_pb2 as pb
from eyas.tokenizer.v1 import tokenizer_pb2_grpc
from eyas.vllm.client import Ending, VllmClient
from eyas.vllm.phases import Activity, Limits
from eyas.vllm.requests import TokensRequest

_CALL_SECONDS = 60.0
_ANSWER_SECONDS = 300.0


@dataclass
class Model:
    """A model that can be asked."""

    spec: run_pb2.RunSpec
    described: Description
    client: VllmClient
    tokenizer: tokenizer_pb2_grpc.TokenizerAsyncStub
    settings: Settings
    activity: Activity = field(default_factory=Activity)

    async def render(self, messages: str) -> list[int]:
        """Ids of a conversation."""
        kwargs = self.spec.generation.chat_template_kwargs
        with translated("tokenizer"):
            request = pb.RenderRequest(messages=messages, chat_template_kwargs=kwargs)
            return list((await self.tokenizer.Render(request, timeout=_CALL_SECONDS)).ids)

    async def parse(self, prompt: list[int], ids: list[int]) -> pb.ParseResponse:
        """An answer as a message."""
        with translated("tokenizer"):
            return await self.tokenizer.Parse(pb.ParseRequest(ids=ids, prompt_ids=prompt[-64:]), timeout=_CALL_SECONDS)

    async def answer(self, prompt: list[int], max_tokens: int, greedy: bool) -> tuple[list[int], Ending]:
        """An answer of the first endpoint, as ids. Raises EndpointError."""
        spec, ids = self.spec, list[int]()
        sampling = run_pb2.Sampling(temperature=0.0) if greedy else spec.generation.sampling
        name = spec.model.served_name or spec.model.uri
        request = TokensRequest(name, prompt, max_tokens, sampling)
        limits = Limits(connect=10.0, first_token=_ANSWER_SECONDS, stall=_ANSWER_SECONDS, total=_ANSWER_SECONDS)
        ending = await self.client.complete(spec.endpoints[0].url, request, ids.extend, limits, self.activity)
        return ids, ending


def spec_of(
    given: Mapping[str, Any], file: Path | None = None, assignments: list[str] | None = None
) -> run_pb2.RunSpec:
    """The spec of options for a command that makes no run."""
    return specs.build(options.mapping("unnamed", file, given, assignments or []))


@asynccontextmanager
async def asked(spec: run_pb2.RunSpec, settings: Settings) -> AsyncIterator[Model]:
    """Starts the model's tokenizer, and a client of its endpoints."""
    key = settings.api_key.get_secret_value()
    with transient() as claim:
        stack = Stack(Place("", spec.name, None), claim, claim.folder, settings, settings.vllm_python)
        async with (
            stack.tokenizer(spec.model.uri),
            VllmClient(key) as client,
            open_channel(claim.tokenizer, claim.token) as channel,
        ):
            kwargs = spec.generation.chat_template_kwargs
            described = await stack.unless_ended(describing.describe(claim.tokenizer, claim.token, kwargs))
            stub = tokenizer_pb2_grpc.TokenizerStub(channel)
            yield Model(spec, described, client, stub, settings)


def user(text: str) -> str:
    """A conversation of one user message, as JSON."""
    return json.dumps([{"role": "user", "content": text}])
