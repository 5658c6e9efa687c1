"""What a simulator is asked to be."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from eyas.simulator.faults import Rule


class SimulatorSettings(BaseSettings):
    """Read from the environment, e.g. EYAS_SIMULATOR_CONTEXT=2048."""

    model_config = SettingsConfigDict(env_prefix="EYAS_SIMULATOR_", frozen=True)

    listen: str = "127.0.0.1:8000"
    """host:port; port 0 takes a free one."""
    model: str = "simulated"
    """Name under which it serves, and its root."""
    api_key: str = ""
    """When set, requests to /v1 must carry it."""
    context: int = 8192
    """Prompt and answer together, in tokens."""
    vocab_size: int = 32_000
    eos_id: int = 2
    """Ends an answer."""
    marker_id: int = 3
    """Ends every prompt, and is in no answer: what follows its last occurrence is a partial answer."""
    median_tokens: float = 200.0
    """Of the lengths of answers, which are lognormal."""
    sigma: float = 0.8
    """Standard deviation of the logarithm of the lengths."""
    tokens_per_second: float = 50.0
    """Of each stream; 0 is as fast as it can."""
    time_scale: float = 1.0
    """So many seconds of the model pass in a second."""
    max_num_seqs: int = 1024
    """Requests computed at once; others wait."""
    seed: int = 0
    """Of the answers and the faults."""
    faults: tuple[Rule, ...] = Field(default=())
    """A JSON list, e.g. [{"kind": "cut", "share": 0.1, "after": 20}]."""
    storage_uri: str = ""
    """Where hidden states of requests with kv_transfer_params are put; empty puts none."""
    hidden_states_layers: int = 4
    hidden_size: int = 64
