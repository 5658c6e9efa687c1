"""Asks the tokenizer and the endpoints what the model is."""

import json
from dataclasses import dataclass

from eyas.cli import pinning
from eyas.errors import InputError
from eyas.rpc.channels import open_channel
from eyas.rpc.errors import translated
from eyas.run.v1 import run_pb2
from eyas.tokenizer.v1 import tokenizer_pb2 as pb
from eyas.tokenizer.v1 import tokenizer_pb2_grpc
from eyas.vllm.client import ServerInfo, VllmClient

_CALL_SECONDS = 60.0
_PROBE = json.dumps([{"role": "user", "content": "Hello"}])


@dataclass(frozen=True)
class Description:
    """What the tokenizer says."""

    model: pb.DescribeResponse
    prompt: list[int]
    """A short rendered prompt."""

    @property
    def reasons(self) -> bool:
        """Whether the chat template opens a reasoning section."""
        return pinning.opened(self.prompt, self.model)


async def describe(target: str, token: str, chat_template_kwargs: str) -> Description:
    """Asks the tokenizer."""
    async with open_channel(target, token) as channel:
        stub = tokenizer_pb2_grpc.TokenizerStub(channel)
        with translated("tokenizer"):
            model = await stub.Describe(pb.DescribeRequest(), timeout=_CALL_SECONDS, wait_for_ready=True)
            request = pb.RenderRequest(messages=_PROBE, chat_template_kwargs=chat_template_kwargs)
            rendered = await stub.Render(request, timeout=_CALL_SECONDS, wait_for_ready=True)
    return Description(model, list(rendered.ids))


async def probe(spec: run_pb2.RunSpec, api_key: str) -> ServerInfo | None:
    """Asks all endpoints. Returns the first one's answer, None without endpoints.

    Raises InputError when one does not serve the model, or when they differ; EndpointError when one is out of reach.
    """
    async with VllmClient(api_key) as client:
        found = [await client.probe(endpoint.url) for endpoint in spec.endpoints]
    for endpoint, server in zip(spec.endpoints, found, strict=True):
        first = found[0]
        pinning.served_name(spec, server, endpoint.url)
        if (server.root, server.context) != (first.root, first.context):
            raise InputError(
                f"{endpoint.url} serves {server.root} with a context of {server.context:,}, {spec.endpoints[0].url} "
                f"{first.root} with {first.context:,}: endpoints of one run must serve the same"
            )
    return found[0] if found else None
