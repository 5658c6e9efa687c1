"""Settings of the trainer, from the environment."""

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What the trainer is told, as EYAS_* variables."""

    model_config = SettingsConfigDict(env_prefix="EYAS_", frozen=True)

    storage_uri: str
    """Where the runs lie."""
    run: str
    """Name of the run."""
    dispatcher: str = ""
    """Who is told about progress: `host:port` or `unix:/path`; empty for nobody."""
    token: SecretStr = SecretStr("")
    """Bearer token for the dispatcher."""
    metrics_listen: str = "0.0.0.0:9004"
    """Where /metrics, /health and /ready are served; the first process of a node only."""
    log_json: bool = False
    """Logs as JSON."""
