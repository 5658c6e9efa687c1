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


def check_layers(layer_ids: Sequence[int], layers: int) -> tuple[int, ...]:
    """The layers to extract, of a model with `layers` layers. Raises InputError.

    vLLM sorts them and drops repeats on its own, but counts what was given. Layer 0 ends the engine with
    DeepSeek's and Kimi's models at the first request.
    """
    ids = tuple(layer_ids)
    if not ids or list(ids) != sorted(set(ids)) or ids[0] < 1 or ids[-1] > layers:
        raise InputError(
            f"eagle_aux_hidden_state_layer_ids is {list(ids)}: give layers from 1 to {layers}, ascending and without "
            f"repeats; {layers} is the last output before the final norm, and 0, the embeddings, cannot be extracted"
        )
    return ids
