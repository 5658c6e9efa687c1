"""The command line as a user has it: a process with an exit status and two outputs."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Outcome:
    """What a command left."""

    status: int
    out: str
    err: str


async def start(*arguments: str | Path, prefix: tuple[str, ...] = (), **environment: str) -> asyncio.subprocess.Process:
    """Starts `eyas` with these arguments, behind a prefix such as `unshare`."""
    return await asyncio.create_subprocess_exec(
        *prefix,
        sys.executable,
        "-m",
        "eyas.cli",
        *map(str, arguments),
        env=os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"} | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def outcome(process: asyncio.subprocess.Process, seconds: float = 120) -> Outcome:
    """Waits for the end."""
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return Outcome(process.returncode or 0, out.decode(), err.decode())


async def eyas(
    *arguments: str | Path, prefix: tuple[str, ...] = (), seconds: float = 120, **environment: str
) -> Outcome:
    """Runs `eyas` to its end."""
    return await outcome(await start(*arguments, prefix=prefix, **environment), seconds)


def process_of(command: asyncio.subprocess.Process, service: str) -> int:
    """Id of the process of a service that a running command has started, such as `eyas.dispatcher`."""
    for pid in _descendants(command.pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "eyas.vllm.guard" not in words and service in words:
            return pid
    raise LookupError(service)


def descendants(command: asyncio.subprocess.Process) -> list[int]:
    """Ids of all processes below a command."""
    return list(_descendants(command.pid))


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _descendants(parent: int) -> Iterator[int]:
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            yield child
            yield from _descendants(child)


def own_mounts(script: str, folder: Path) -> tuple[str, ...]:
    """A prefix that runs a script, with mounts of its own and the folder as `$0`, before the command."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], check=False).returncode:
        pytest.skip("this machine allows no mounts of one's own")
    folder.mkdir()
    return (unshare, "-rm", "sh", "-c", f'{script}; exec "$@"', str(folder))
