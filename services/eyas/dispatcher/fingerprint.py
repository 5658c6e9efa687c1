"""What a run is pinned to: the tokenizer's files, and what the endpoints say of the model."""

from eyas.dispatcher.endpoints import check
from eyas.errors import InputError
from eyas.run.v1 import run_pb2
from eyas.tokenizer.v1 import tokenizer_pb2
from eyas.vllm.client import ServerInfo, VllmClient


async def pinned(
    spec: run_pb2.RunSpec, described: tokenizer_pb2.DescribeResponse, client: VllmClient
) -> run_pb2.RunSpec:
    """The spec with its fingerprint, after asking every endpoint. Raises InputError, or EndpointError."""
    result = run_pb2.RunSpec()
    result.CopyFrom(spec)
    servers = {endpoint.url: await client.probe(endpoint.url) for endpoint in spec.endpoints}
    if not spec.model.fingerprint.tokenizer_hash:
        first = next(iter(servers.values()), None)
        result.model.fingerprint.CopyFrom(_fingerprint(spec, described, first))
    verify(result, described)
    for url, server in servers.items():
        check(url, server, result)
    room = result.model.fingerprint.context
    if room and result.generation.max_tokens >= room:
        raise InputError(
            f"the model's context of {room} tokens is too small for answers of {result.generation.max_tokens}: "
            "lower --max-tokens, or serve the model with a larger --max-model-len"
        )
    return result


def verify(spec: run_pb2.RunSpec, described: tokenizer_pb2.DescribeResponse) -> None:
    """Raises InputError when the tokenizer is not that of the run."""
    if spec.model.fingerprint.tokenizer_hash != described.hash:
        raise InputError(
            f"the tokenizer service has the files of {described.model}, which differ from those that run {spec.name} "
            "was pinned to: start it with the run's model, or start another run"
        )


def _fingerprint(
    spec: run_pb2.RunSpec, described: tokenizer_pb2.DescribeResponse, server: ServerInfo | None
) -> run_pb2.ModelFingerprint:
    dtype = described.dtype if spec.vllm.dtype in ("", "auto") else spec.vllm.dtype
    launched = spec.vllm.max_model_len or described.context
    return run_pb2.ModelFingerprint(
        root=server.root if server else spec.model.uri,
        dtype="" if dtype == "float32" and spec.vllm.dtype in ("", "auto") else dtype,
        context=(server.context if server else 0) or launched,
        vocab_size=described.vocab_size,
        eos_token_ids=described.eos_token_ids,
        tokenizer_hash=described.hash,
        reasons=described.HasField("reasoning_start_id"),
        hidden_size=described.hidden_size,
    )
