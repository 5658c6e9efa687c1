"""Settings of the evaluator, from the environment."""

from pathlib import Path

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What the evaluator is told, as EYAS_* variables."""

    model_config = SettingsConfigDict(env_prefix="EYAS_", frozen=True)

    storage_uri: str
    """Where the runs lie."""
    run: str
    """Name of the run."""
    dispatcher: str = ""
    """Who is told about progress: `host:port` or `unix:/path`; empty for nobody."""
    token: SecretStr = SecretStr("")
    """Bearer token for the dispatcher."""
    vllm_python: Path = Path("python3")
    """Interpreter of the environment that vLLM is installed in."""
    endpoint: str = ""
    """Address of a server to measure as it is, without /v1; empty: drafters are served here, one after the other."""
    api_key: SecretStr = SecretStr("")
    """Key of that server."""
    log_json: bool = False
    """Logs as JSON."""
