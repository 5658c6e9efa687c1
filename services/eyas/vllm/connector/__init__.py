"""Hidden states from a vLLM server to object storage: a KV connector that runs inside vLLM's processes.

    --speculative-config '{"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config":
        {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27, 30]}}}'
    --kv-transfer-config '{"kv_connector": "EyasHiddenStatesConnector", "kv_role": "kv_producer",
        "kv_connector_module_path": "eyas.vllm.connector", "kv_connector_extra_config": {"storage_uri": "s3://..."}}'

A request with `kv_transfer_params: {"eyas_key": "<...>/<hash of the ids>.safetensors", "eyas_rows": T}` leaves the
states of its first T ids as an object of `eyas.storage.hidden_states` at that key. The reply comes before the object:
whoever asked waits for the object itself.

The scheduler's half (`plan`) keeps ids and blocks of a finished request; the worker's half (`work`) copies them out of
the cache (`copies`), lets vLLM free the blocks, and uploads from threads (`uploads`). Nothing here may raise into
vLLM while it serves: one exception would end the engine and all that it holds.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """The class, once it is asked for: the other modules work where vLLM is not installed."""
    if name != "EyasHiddenStatesConnector":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from eyas.vllm.connector.connector import EyasHiddenStatesConnector  # noqa: PLC0415

    return EyasHiddenStatesConnector
