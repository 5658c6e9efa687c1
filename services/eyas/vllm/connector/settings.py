"""What the connector is told, and the mistakes that are refused when a server starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eyas.errors import InputError


class ConnectorSettings(BaseModel):
    """`kv_connector_extra_config` of vLLM's --kv-transfer-config."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    storage_uri: str
    """Where keys are relative to: a folder, or s3://bucket/prefix."""
    layer_ids: tuple[int, ...] = ()
    """The layers that are expected; when given, a server that extracts others does not start."""
    bytes_in_flight: int = Field(default=2**32, gt=0)
    """Host memory for states that are not uploaded yet. When it is full, requests keep their blocks of the cache."""
    upload_threads: int = Field(default=8, gt=0)
    """Uploads at once."""
    upload_seconds: float = Field(default=60.0, ge=0)
    """How long an upload is tried again while storage is out of reach; then the object is missing, and counted."""
    flush_seconds: float = Field(default=60.0, ge=0)
    """How long a shutdown waits for uploads. vLLM must wait for the worker that long, too."""


def read_settings(extra: Mapping[str, Any]) -> ConnectorSettings:
    """Reads `kv_connector_extra_config`. Raises InputError."""
    try:
        return ConnectorSettings(**extra)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InputError(f"kv_connector_extra_config of EyasHiddenStatesConnector cannot be used: {wrong}") from error


def check_server(vllm_config: Any, expected: Sequence[int] = ()) -> tuple[int, ...]:
    """The layers that a server with this VllmConfig extracts.

    Raises InputError for a server that would end at its first request, or write what it should not: layer 0 ends the
    engine with DeepSeek's and Kimi's models, and repeated layers are counted, but stored once.
    """
    speculative, parallel = vllm_config.speculative_config, vllm_config.parallel_config
    if speculative is None or speculative.method != "extract_hidden_states":
        raise InputError(
            "EyasHiddenStatesConnector needs hidden states: give --speculative-config "
            '\'{"method": "extract_hidden_states", ...}\''
        )
    if vllm_config.kv_transfer_config.kv_role != "kv_producer":
        raise InputError('EyasHiddenStatesConnector only writes: set "kv_role": "kv_producer" in --kv-transfer-config')
    if parallel.decode_context_parallel_size > 1:
        raise InputError("hidden states cannot be extracted with --decode-context-parallel-size: leave it out")
    config = speculative.draft_model_config.hf_config
    ids = tuple(getattr(config, "eagle_aux_hidden_state_layer_ids", None) or ())
    layers = vllm_config.model_config.get_total_num_hidden_layers()
    if not ids or list(ids) != sorted(set(ids)) or ids[0] < 1 or ids[-1] > layers:
        raise InputError(
            f"eagle_aux_hidden_state_layer_ids is {list(ids)}: give layers from 1 to {layers}, ascending and without "
            f"repeats; {layers} is the last output before the final norm, and 0, the embeddings, cannot be extracted"
        )
    if expected and ids != tuple(expected):
        raise InputError(f"vLLM extracts the layers {list(ids)}, {list(expected)} are expected: give the same twice")
    return ids
