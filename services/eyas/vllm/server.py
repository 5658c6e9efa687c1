"""A vLLM as a child process that is up when its block is entered and gone when it is left."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import aiohttp

from eyas.errors import EndpointError, InputError
from eyas.vllm import guard

_POLL_SECONDS = 0.25
_GRACE_SECONDS = 10.0
_STOP_SECONDS = 15.0
_TAIL_BYTES = 64 * 1024
_ERROR = re.compile(r"[A-Za-z.]*(?:Error|Exception|Refused): .+")
_WRAPPERS = ("Engine core initialization failed", "WorkerProc initialization failed", "See stack trace")


@dataclass(frozen=True)
class Command:
    """A vLLM to start."""

    arguments: tuple[str, ...]
    """Interpreter and arguments, without host and port."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Defaults: a variable that is set already stays."""


class VllmServer:
    """`async with VllmServer(command, log, start_seconds) as server:` — a vLLM that answers at `server.url`.

    The server is a tree of processes; `eyas.vllm.guard` ends all of it with this process, however it ends.

    Raises (on entering):
        EndpointError: it ended, or did not answer in `start_seconds`; the sentence holds the reason from its log.
        InputError: the log can't be written.
    """

    def __init__(self, command: Command, log: Path, start_seconds: float, host: str = "127.0.0.1") -> None:
        self.url = ""
        self._command = command
        self._log = log
        self._start_seconds = start_seconds
        self._host = host
        self._port = socket.socket()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def exit_code(self) -> int | None:
        """Exit status once it ended: above 128 for a signal. None while it runs."""
        return self._process.returncode if self._process else None

    async def wait(self) -> int:
        """Returns the exit status when the server ends by itself."""
        if self._process is None:
            raise EndpointError("vLLM was not started")
        return await self._process.wait()

    async def __aenter__(self) -> "VllmServer":
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def tail(self, lines: int = 20) -> str:
        """The last lines of the log."""
        return "\n".join(self._text().splitlines()[-lines:])

    def reason(self) -> str:
        """Why the server ended, in one line: the last error of its log that is not about another error."""
        text = self._text()
        errors: list[str] = [
            found for found in _ERROR.findall(text) if not any(wrapper in found for wrapper in _WRAPPERS)
        ]
        lines = text.split("\n") if text.strip() else ["nothing was logged"]
        return (errors or [line for line in lines if line.strip()])[-1].strip()

    async def _start(self) -> None:
        # Held open, but not listening: nobody else is given the port, and vLLM (SO_REUSEADDR too) can bind it.
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind((self._host, 0))
        port = self._port.getsockname()[1]
        self.url = f"http://{self._host}:{port}"
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            log = self._log.open("wb")
        except OSError as error:
            raise InputError(f"the log of vLLM cannot be written to {self._log}: {error.strerror}") from error
        with log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "eyas.vllm.guard", str(os.getpid()), str(_GRACE_SECONDS)),
                *self._command.arguments,
                *("--host", self._host, "--port", str(port)),
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        answers, ends = asyncio.ensure_future(self._answers()), asyncio.ensure_future(self._process.wait())
        try:
            done, _ = await asyncio.wait(
                {answers, ends}, timeout=self._start_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            answers.cancel()
            ends.cancel()
        if ends in done:
            raise EndpointError(f"vLLM ended with status {ends.result()}: {self.reason()} (log: {self._log})")
        if not done:
            raise EndpointError(
                f"vLLM did not answer within {self._start_seconds:.0f} s: {self.reason()} (log: {self._log}); "
                "give it longer with vllm.startSeconds"
            )

    async def _answers(self) -> None:
        timeout = aiohttp.ClientTimeout(total=5.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    async with session.get(f"{self.url}/health") as response:
                        if response.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass  # not listening yet
                await asyncio.sleep(_POLL_SECONDS)

    async def _stop(self) -> None:
        self._port.close()
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        # The guard has done so already, unless it was killed itself.
        guard.end_session(process.pid)

    def _environment(self) -> dict[str, str]:
        # Settings and secrets of eyas are no business of the server's.
        own = {name: value for name, value in os.environ.items() if not name.startswith("EYAS_")}
        return {**self._command.environment, **own}

    def _text(self) -> str:
        if not self._log.exists():
            return ""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace")
