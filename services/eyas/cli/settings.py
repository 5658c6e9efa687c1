"""What the command line takes from the environment, because it must not stand on a command line."""

import sys
from pathlib import Path

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """EYAS_* variables of the user's shell."""

    model_config = SettingsConfigDict(env_prefix="EYAS_", frozen=True)

    api_key: SecretStr = SecretStr("")
    """Key of the model server."""
    vllm_python: Path = Path(sys.executable)
    """Default of --vllm-python."""
    trust_remote_code: bool = False
    """Whether Python code from the model's folder may run in the tokenizer."""
