"""Completes a spec with what the tokenizer and the endpoint say about the model, and refuses what cannot work. Pure."""

from eyas.errors import InputError
from eyas.run.v1 import run_pb2 as pb
from eyas.tokenizer.v1 import tokenizer_pb2
from eyas.vllm.client import ServerInfo

_SHORTEST_PROMPT = 16
"""Tokens that even an empty chat takes."""


def complete(
    spec: pb.RunSpec,
    described: tokenizer_pb2.DescribeResponse,
    server: ServerInfo | None,
    reasons: bool,
) -> None:
    """Fills served name, layers and fingerprint. `server` is the first endpoint's answer, None to launch a vLLM.

    Raises InputError: the endpoint does not serve the model, the context is too small, the layers don't exist.
    """
    if server is not None:
        spec.model.served_name = served_name(spec, server, spec.endpoints[0].url)
    _layers(spec, described.num_layers)
    spec.model.fingerprint.CopyFrom(
        pb.ModelFingerprint(
            root=spec.model.uri if server is None else server.root,
            dtype=_dtype(spec, described.dtype),
            context=context(spec, described, server),
            vocab_size=described.vocab_size,
            eos_token_ids=described.eos_token_ids,
            tokenizer_hash=described.hash,
            reasons=reasons,
            hidden_size=described.hidden_size,
        )
    )
    _fits(spec)


def served_name(spec: pb.RunSpec, server: ServerInfo, url: str) -> str:
    """The name under which an endpoint serves the model. Raises InputError when it does not."""
    wanted = spec.model.served_name or spec.model.uri
    if wanted in server.models:
        return wanted
    if not spec.model.served_name and server.root == spec.model.uri:
        return server.models[0]
    raise InputError(
        f"{url} serves {', '.join(server.models)}, not {wanted}: "
        f"give the right --model, or name it as the server does with --served-model-name {server.models[0]}"
    )


def context(spec: pb.RunSpec, described: tokenizer_pb2.DescribeResponse, server: ServerInfo | None) -> int:
    """Context in tokens: the server's own, else what a launched vLLM will have."""
    if server is not None and server.context:
        return server.context
    return spec.vllm.max_model_len or described.context


def opened(ids: list[int], described: tokenizer_pb2.DescribeResponse) -> bool:
    """Whether a rendered prompt ends inside a reasoning section."""
    if not described.HasField("reasoning_start_id"):
        return False
    markers = [index for index in ids if index in (described.reasoning_start_id, described.reasoning_end_id)]
    return bool(markers) and markers[-1] == described.reasoning_start_id


def _layers(spec: pb.RunSpec, count: int) -> None:
    layers = list(spec.hidden_states.layer_ids)
    if not layers and count:
        layers = sorted({2, count // 2, count - 3, count})
    if count and layers and layers[-1] != count:
        raise InputError(
            f"hiddenStates.layerIds is {layers}, but the model has {count} layers: the last of the four must be {count}"
        )
    del spec.hidden_states.layer_ids[:]
    spec.hidden_states.layer_ids.extend(layers)


def _dtype(spec: pb.RunSpec, of_config: str) -> str:
    """As served. vLLM's `auto` takes the config's, but for float32, where it takes what the machine is fast at."""
    if spec.vllm.dtype not in ("", "auto"):
        return spec.vllm.dtype
    return "" if of_config == "float32" else of_config


def _fits(spec: pb.RunSpec) -> None:
    limit = spec.model.fingerprint.context
    if limit and spec.generation.max_tokens + _SHORTEST_PROMPT > limit:
        raise InputError(
            f"answers of {spec.generation.max_tokens:,} tokens do not fit into the context of {limit:,}: "
            f"set --max-tokens to {max(1, limit // 2):,} or so, or serve the model with a larger context"
        )
