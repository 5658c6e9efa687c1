"""How a service's process starts and ends."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

import uvloop
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from eyas.errors import EyasError

_Settings = TypeVar("_Settings", bound=BaseSettings)


def settings(kind: type[_Settings]) -> _Settings:
    """Reads a service's settings from the environment; ends the process with a sentence when they can't be used."""
    try:
        return kind()
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix", "")
        found = "; ".join(
            f"{prefix}{'.'.join(map(str, item['loc']))}".upper() + f": {item['msg']}" for item in error.errors()
        )
        _end(f"the environment does not configure this service: {found}")


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a service on uvloop. An error of eyas ends the process with its sentence and status 1, without traceback."""
    try:
        uvloop.run(main)
    except EyasError as error:
        _end(str(error))


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. A second signal has no further effect: the grace is the supervisor's."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    return event


def _end(sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)  # noqa: T201 - the last word of a process, however logs are written
    sys.exit(1)
