"""Settings of the generator, from the environment."""

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What the generator is told, as EYAS_* variables."""

    model_config = SettingsConfigDict(env_prefix="EYAS_", frozen=True)

    dispatcher: str
    """Where the dispatcher is: `host:port` or `unix:/path`."""
    tokenizer: str
    """Where the tokenizer is: `host:port` or `unix:/path`."""
    metrics_listen: str = "0.0.0.0:9002"
    """Where /metrics, /health and /ready are served."""
    token: SecretStr = SecretStr("")
    """Bearer token of the services."""
    api_key: SecretStr = SecretStr("")
    """Key of the model servers."""
    capacity: int = 1000
    """Items worked on at once. Answers that ended and wait to be written do not count."""
    grace_seconds: float = 20.0
    """After SIGTERM, time for answers to end before they are given back with their tokens."""
    acknowledge_seconds: float = 60.0
    """After that, time for the dispatcher to take what is given back and to write the rows."""
    log_json: bool = False
    """Logs as JSON."""
