"""Settings of the extractor, from the environment."""

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What the extractor is told, as EYAS_* variables."""

    model_config = SettingsConfigDict(env_prefix="EYAS_", frozen=True)

    storage_uri: str
    """Where the runs lie."""
    run: str
    """Name of the run."""
    dispatcher: str = ""
    """Who is told about progress: `host:port` or `unix:/path`; empty for nobody."""
    token: SecretStr = SecretStr("")
    """Bearer token for the dispatcher."""
    log_json: bool = False
    """Logs as JSON."""
