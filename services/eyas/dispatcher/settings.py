"""Settings of the dispatcher, from the environment."""

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What the dispatcher is told, as EYAS_* variables. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix="EYAS_", frozen=True)

    listen: str
    """Where it serves: `host:port` or `unix:/path`."""
    storage_uri: str
    """Folder or `s3://bucket/prefix` that holds all runs."""
    run: str = ""
    """The one run to work on; empty: all runs of the storage, one after the other."""
    tokenizer: str
    """Where the tokenizer is: `host:port` or `unix:/path`."""
    metrics_listen: str = "0.0.0.0:9001"
    """Where /metrics, /health and /ready are served."""
    token: SecretStr = SecretStr("")
    """Bearer token of the services."""
    api_key: SecretStr = SecretStr("")
    """Key of the model servers."""
    log_json: bool = False
    """Logs as JSON."""
    lease_seconds: float = 20.0
    """Silence that ends a generator's leases."""
    silence_seconds: float = 15.0
    """Silence after which a generator stops its requests; below lease_seconds."""
    heartbeat_seconds: float = 5.0
    """Between signs of life."""
    progress_seconds: float = 1.0
    """Between reports of one item."""
    flush_seconds: float = 30.0
    """Age at which answers are written."""
    flush_rows: int = 1000
    """Number at which answers are written."""
    hint_seconds: float = 60.0
    """Between writes of the partial answers."""
    uncommitted_bytes: int = 512 * 1024 * 1024
    """Answers kept while storage is out of reach; above, nothing is handed out."""
    outbox_messages: int = 20_000
    """Messages that wait for a generator; above, its stream is dropped."""
    hidden_states_seconds: float = 60.0
    """Time for the hidden states of an answered extraction to arrive."""
    probe_seconds: float = 60.0
    """Time for the one token of a probe."""
