"""Who works on a run on this machine: a lock, a token and sockets in a private folder."""

from __future__ import annotations  # the stubs of gRPC know more types than its modules

import fcntl
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from eyas.cli.place import Place
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.errors import InputError
from eyas.rpc.channels import open_channel


@dataclass(frozen=True)
class Claim:
    """The private folder of a run that is worked on."""

    folder: Path
    token: str

    @property
    def dispatcher(self) -> str:
        """Target of the dispatcher's channel."""
        return f"unix:{self.folder}/dispatcher.sock"

    @property
    def tokenizer(self) -> str:
        """Target of the tokenizer's channel."""
        return f"unix:{self.folder}/tokenizer.sock"


@contextmanager
def claimed(place: Place) -> Iterator[Claim]:
    """Holds the run for this process. Raises InputError while another process of this user works on it."""
    folder = place.private()
    with (folder / "lock").open("a") as lock:
        if not _lock(lock.fileno()):
            raise InputError(
                f"another eyas works on {place.output} already: "
                f"look at it with `eyas watch {place.output}`, or end it first"
            )
        token = secrets.token_urlsafe(32)
        path = folder / "token"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(token)
        yield Claim(folder, token)


def is_claimed(place: Place) -> bool:
    """Whether a process on this machine works on the run."""
    with (place.private() / "lock").open("a") as lock:
        return not _lock(lock.fileno())


@asynccontextmanager
async def attached(place: Place) -> AsyncIterator[dispatch_pb2_grpc.RunsAsyncStub]:
    """The dispatcher of whoever works on the run. Raises InputError when nobody does."""
    if not is_claimed(place):
        raise InputError(
            f"nothing works on {place.output} on this machine: "
            f"start it with `eyas run --output {place.output}`, which goes on where it was"
        )
    folder = place.private()
    claim = Claim(folder, (folder / "token").read_text())
    async with open_channel(claim.dispatcher, claim.token) as channel:
        yield dispatch_pb2_grpc.RunsStub(channel)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def transient() -> Iterator[Claim]:
    """A private folder for a command that works on no run."""
    with tempfile.TemporaryDirectory(prefix="eyas-") as name:
        yield Claim(Path(name), secrets.token_urlsafe(32))
