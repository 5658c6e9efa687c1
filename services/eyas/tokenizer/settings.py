"""Settings of the tokenizer, from the environment."""

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What the tokenizer is told, as EYAS_* variables."""

    model_config = SettingsConfigDict(env_prefix="EYAS_", frozen=True)

    model: str
    """Folder or repository with the model's tokenizer and config."""
    listen: str = "0.0.0.0:7003"
    """Where gRPC listens: `host:port` or `unix:/path`."""
    metrics_listen: str = "0.0.0.0:9003"
    """Where /metrics, /health and /ready are served."""
    token: SecretStr = SecretStr("")
    """Bearer token that callers must carry; empty asks for none."""
    trust_remote_code: bool = False
    """Whether Python code from the model's folder may run, as some tokenizers need."""
    log_json: bool = False
    """Logs as JSON."""
