"""How a service's process starts and ends."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

from eyas.errors import EyasError


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a service on uvloop. An error of eyas ends the process with its sentence and status 1, without traceback."""
    try:
        uvloop.run(main)
    except EyasError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the last word of a process, whatever the logs are
        sys.exit(1)


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. A second signal has no further effect: the grace is the supervisor's."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    return event
