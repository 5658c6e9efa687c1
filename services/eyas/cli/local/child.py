"""A child process that logs to a file and never outlives this one."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from eyas.errors import InputError

_TAIL_BYTES = 16 * 1024
_KILL_SECONDS = 5.0


class Child:
    """A command under `eyas.vllm.guard`, in a session of its own, so that Ctrl-C reaches it only through us."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, start: int, grace: float) -> None:
        self._process = process
        self._log = log
        self._start = start
        self._grace = grace

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], log: Path, grace: float) -> "Child":
        """Starts a command whose output is appended to `log`. `grace`: seconds between SIGTERM and SIGKILL."""
        try:
            with log.open("ab") as file:
                start = file.tell()
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "eyas.vllm.guard", str(os.getpid()), str(grace), *command),
                    env={**os.environ, **environment},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
        except OSError as error:
            raise InputError(
                f"the log {log} cannot be written: {error.strerror}; make room, or choose another --output"
            ) from error
        return cls(process, log, start, grace)

    async def wait(self) -> int:
        """Exit status once it ends: negative for the signal that ended it."""
        code = await self._process.wait()
        return code if code <= 128 else 128 - code

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after the grace. Returns when it is gone."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), self._grace + _KILL_SECONDS)
            except TimeoutError:
                self.kill()
                await self._process.wait()

    def kill(self) -> None:
        """SIGKILL. The guard's death kills what it guards."""
        if self._process.returncode is None:
            self._process.kill()

    def tail(self, lines: int = 20) -> str:
        """The last lines that it logged."""
        with self._log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._start, end - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
