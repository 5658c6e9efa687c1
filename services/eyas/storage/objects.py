"""Object storage: S3, a folder or memory behind one small class, and the boundary for obstore's errors.

Puts are atomic everywhere: in a folder an object is written beside its name and then renamed, or linked if it must not
replace another. Credentials and the address of an S3 server come from the AWS_* variables, which obstore reads.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions as foreign
from obstore.store import LocalStore, MemoryStore, S3Store

from eyas.errors import (
    AlreadyExistsError,
    EyasError,
    InputError,
    NotFoundError,
    StorageError,
    StorageFullError,
    UnavailableError,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig

T = TypeVar("T")

_REQUEST_SECONDS = 120
"""Limit of one request; the largest object of a run, hidden states of a long answer, must fit into it."""

_FULL = {1, 13, 27, 28, 30, 122}  # EPERM, EACCES, EFBIG, ENOSPC, EROFS, EDQUOT
_PASSING = {4, 5, 11, 23, 24, 110, 116}  # EINTR, EIO, EAGAIN, ENFILE, EMFILE, ETIMEDOUT, ESTALE
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_HTTP_STATUS = re.compile(r"status code: (\d{3})")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object without its data. `key` is relative to the store; `size` in bytes."""

    key: str
    size: int
    modified: datetime


def open_store(uri: str) -> "ObjectStore":
    """Opens `s3://bucket/prefix`, `memory:///`, `file:///path` or the path of a folder, which is made if need be.

    Every `memory:///` is a store of its own.
    """
    parts = urlsplit(uri)
    with _translated(uri, "", writing=True):
        if parts.scheme == "memory":
            return ObjectStore(MemoryStore(), uri)
        if parts.scheme == "s3":
            options: ClientConfig = {"allow_http": True, "timeout": timedelta(seconds=_REQUEST_SECONDS)}
            return ObjectStore(S3Store.from_url(uri, client_options=options), uri)
        if parts.scheme == "file":
            return ObjectStore(_open_folder(Path(unquote(parts.path))), uri)
        if "://" not in uri and uri:
            return ObjectStore(_open_folder(Path(uri).expanduser().absolute()), uri)
    raise InputError(f"{uri!r} is no storage: give a folder, file:///folder or s3://bucket/prefix")


def _open_folder(path: Path) -> LocalStore:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{error.filename or path} is a file: give a folder for the output") from error
    return LocalStore(path)


class ObjectStore:
    """Objects by key. Every method raises errors of eyas only: those of `StorageError`, and InputError.

    The methods with `_blocking` in their names are for threads.
    """

    def __init__(self, store: Any, uri: str) -> None:
        self._store = store
        self.uri = uri

    async def get(self, key: str) -> bytes:
        """The whole object. Raises NotFoundError."""
        with _translated(self.uri, key):
            result = await obstore.get_async(self._store, key)
            return (await result.bytes_async()).to_bytes()

    def get_blocking(self, key: str) -> bytes:
        """`get` for threads."""
        with _translated(self.uri, key):
            return obstore.get(self._store, key).bytes().to_bytes()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start`, which must lie in the object. Raises NotFoundError."""
        with _translated(self.uri, key):
            return (await obstore.get_range_async(self._store, key, start=start, length=length)).to_bytes()

    def get_range_blocking(self, key: str, start: int, length: int) -> bytes:
        """`get_range` for threads."""
        with _translated(self.uri, key):
            return obstore.get_range(self._store, key, start=start, length=length).to_bytes()

    async def put(self, key: str, data: bytes | memoryview) -> None:
        """Writes the object, in place of another if there is one. No reader sees half of it."""
        with _translated(self.uri, key, writing=True):
            await obstore.put_async(self._store, key, data)

    def put_blocking(self, key: str, data: bytes | memoryview) -> None:
        """`put` for threads."""
        with _translated(self.uri, key, writing=True):
            obstore.put(self._store, key, data)

    async def create(self, key: str, data: bytes | memoryview) -> None:
        """Writes a new object. Raises AlreadyExistsError, after a lost reply also when this very write made it."""
        with _translated(self.uri, key, writing=True):
            await obstore.put_async(self._store, key, data, mode="create")

    def create_blocking(self, key: str, data: bytes | memoryview) -> None:
        """`create` for threads."""
        with _translated(self.uri, key, writing=True):
            obstore.put(self._store, key, data, mode="create")

    async def head(self, key: str) -> ObjectInfo:
        """Size and time of an object. Raises NotFoundError."""
        with _translated(self.uri, key):
            return _info(await obstore.head_async(self._store, key))

    def head_blocking(self, key: str) -> ObjectInfo:
        """`head` for threads."""
        with _translated(self.uri, key):
            return _info(obstore.head(self._store, key))

    async def list(self, prefix: str, after: str | None = None) -> AsyncIterator[ObjectInfo]:
        """All objects below a folder-like prefix, sorted by key; only keys behind `after` if it is given."""
        found: list[ObjectInfo] = []
        with _translated(self.uri, prefix):
            async for chunk in obstore.list(self._store, prefix, offset=after, chunk_size=1000):
                found.extend(_info(meta) for meta in chunk)
        for info in sorted(found, key=_key):
            yield info

    def list_blocking(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """`list` for threads."""
        found: list[ObjectInfo] = []
        with _translated(self.uri, prefix):
            for chunk in obstore.list(self._store, prefix, offset=after, chunk_size=1000):
                found.extend(_info(meta) for meta in chunk)
        yield from sorted(found, key=_key)

    async def folders(self, prefix: str = "") -> tuple[str, ...]:
        """Names directly below a prefix that have objects below them, sorted."""
        with _translated(self.uri, prefix):
            result = await obstore.list_with_delimiter_async(self._store, prefix)
        return tuple(sorted(path.rpartition("/")[2] for path in result["common_prefixes"]))

    async def delete(self, key: str) -> None:
        """Deletes an object; one that is not there is no error."""
        with _translated(self.uri, key, writing=True):
            try:
                await obstore.delete_async(self._store, key)
            except FileNotFoundError:
                return


async def outlast(
    operation: Callable[[], Awaitable[T]],
    *,
    report: Callable[[UnavailableError, float], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    longest: float = 15.0,
) -> T:
    """Does `operation` again until storage answers, however long that takes. All other errors pass.

    Waits 0.5 s, then twice as long each time up to `longest` seconds. `report` hears of every failure, with the seconds
    since the first.
    """
    began = clock()
    wait = 0.5
    while True:
        try:
            return await operation()
        except UnavailableError as error:
            report(error, clock() - began)
        await sleep(wait)
        wait = min(2 * wait, longest)


def _key(info: ObjectInfo) -> str:
    return info.key


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"])


@contextmanager
def _translated(uri: str, key: str, *, writing: bool = False) -> Iterator[None]:
    """The boundary: raises errors of eyas in place of obstore's."""
    try:
        yield
    except (foreign.BaseError, OSError, ValueError) as error:
        raise _translate(error, _where(uri, key), writing=writing) from error


def _where(uri: str, key: str) -> str:
    return f"{uri.rstrip('/')}/{key}" if key else uri


def _translate(error: Exception, where: str, *, writing: bool) -> EyasError:
    said = str(error).partition("\n\nDebug source")[0].strip()
    if isinstance(error, foreign.AlreadyExistsError):
        return AlreadyExistsError(f"{where} exists already")
    if "NoSuchBucket" in said or (writing and isinstance(error, FileNotFoundError)):
        return InputError(f"the bucket or folder of {where} does not exist: create it, or correct the storage address")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{where} does not exist")
    if isinstance(error, ValueError):
        return InputError(f"{where} is no usable name in object storage: {said}")
    errno = error.errno if isinstance(error, OSError) else None
    return _by_status(said, where, errno or _number(_OS_ERROR, said), writing=writing)


def _by_status(said: str, where: str, errno: int, *, writing: bool) -> EyasError:
    """obstore names an errno, or a status of HTTP, in words only."""
    status = _number(_HTTP_STATUS, said)
    if "169.254.169.254" in said or "169.254.170.2" in said:
        return UnavailableError(f"no credentials for {where}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({said})")
    if errno in _FULL or status == 507:
        what = "written" if writing else "read"
        return StorageFullError(f"{where} cannot be {what}: make room, or give write access, and try again ({said})")
    if status in (401, 403):
        return StorageFullError(
            f"{where} is refused: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the rights of that key on the "
            f"bucket, and this machine's clock ({said})"
        )
    if errno in _PASSING or status in (408, 429) or status >= 500 or "HTTP error" in said:
        return UnavailableError(f"{where} is out of reach: {said}")
    return StorageError(f"{where}: {said}")


def _number(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match[1]) if match else 0
