"""An append-only log of numbered objects, safe with any number of writers.

A part is appended by creating the object of the next number. A writer whose number is taken reads what stands there:
its own bytes mean that only the reply was lost; another's part is absorbed; a newer writer's part means that this one
was replaced. So there is no lock and no lease, no part is written twice, and no number is left out.

A writer reads the log with `catch_up`, then sets `epoch` to one more than the highest it saw in any log of the run.
Two writers that chose the same epoch are told apart by their nonces.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from eyas.errors import AlreadyExistsError, DataError, NotFoundError, ReplacedError, UnavailableError
from eyas.storage.objects import ObjectStore

T = TypeVar("T")
_DIGITS = 6
_READ_AHEAD = 16


class Codec(Protocol[T]):
    """Turns a part's value into an object and back. Formats in `eyas.storage.tables` are codecs."""

    def encode(self, value: T, epoch: int, nonce: str) -> bytes:
        """The object."""
        ...

    def decode(self, data: bytes) -> tuple[T, int, str]:
        """Value, epoch and nonce. Raises DataError."""
        ...


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One object of a log. Numbers count from 0."""

    number: int
    epoch: int
    nonce: str
    value: T


class Log(Generic[T]):
    """The log below `prefix`, from one writer's or reader's point of view.

    `next_number` is the number after the last part seen; `newest` is the newest (epoch, nonce) seen, (0, "") at first.
    """

    def __init__(  # noqa: PLR0917
        self, store: ObjectStore, prefix: str, suffix: str, codec: Codec[T], epoch: int = 0, nonce: str = ""
    ) -> None:
        self._store = store
        self._prefix = prefix.rstrip("/")
        self._suffix = suffix
        self._codec = codec
        self._name = re.compile(rf"{re.escape(self._prefix)}/(\d{{{_DIGITS}}}){re.escape(suffix)}")
        self.epoch = epoch
        self.nonce = nonce
        self.next_number = 0
        self.newest = (0, "")

    def key(self, number: int) -> str:
        """Key of a part."""
        return f"{self._prefix}/{number:0{_DIGITS}d}{self._suffix}"

    async def catch_up(self) -> AsyncIterator[Part[T]]:
        """Parts not seen yet, in order, to the end of the log. Raises DataError when one is missing or damaged."""
        while (end := await self._end()) > self.next_number:
            while self.next_number < end:
                numbers = range(self.next_number, min(end, self.next_number + _READ_AHEAD))
                for number, data in zip(numbers, await asyncio.gather(*map(self._read, numbers)), strict=True):
                    yield self._seen(number, data)

    async def append(self, value: T) -> Part[T] | None:
        """Writes `value` at the next number, and returns None; or returns the part that stood there, and wrote nothing.

        What is returned was absorbed: drop from the value what that part holds, and call again. Such a part can be
        this writer's own, of an earlier value whose reply was lost. Raises ReplacedError when a newer writer is seen.
        """
        self._check_not_replaced()
        number = self.next_number
        data = self._codec.encode(value, self.epoch, self.nonce)
        try:
            await self._store.create(self.key(number), data)
        except AlreadyExistsError:
            found = await self._found(number)
            part = self._seen(number, found)
            if found == data:
                return None
            self._check_not_replaced()
            return part
        self.next_number = number + 1
        self.newest = max(self.newest, (self.epoch, self.nonce))
        return None

    def _check_not_replaced(self) -> None:
        if self.newest > (self.epoch, self.nonce):
            raise ReplacedError(
                f"another writer (epoch {self.newest[0]}) has taken over {self._prefix}: "
                f"this one (epoch {self.epoch}) ends"
            )

    async def _end(self) -> int:
        """One more than the highest number that is listed, `next_number` at least."""
        after = self.key(self.next_number - 1) if self.next_number else None
        end = self.next_number
        async for info in self._store.list(self._prefix, after):
            match = self._name.fullmatch(info.key)
            if match:
                end = max(end, int(match[1]) + 1)
        return end

    async def _read(self, number: int) -> bytes:
        try:
            return await self._store.get(self.key(number))
        except NotFoundError as error:
            raise DataError(
                f"{self._store.uri}: {self.key(number)} is missing though later parts are there: restore it from a copy"
            ) from error

    async def _found(self, number: int) -> bytes:
        """The part that was in the way. S3 may also refuse a create because of one that is still on its way."""
        try:
            return await self._store.get(self.key(number))
        except NotFoundError as error:
            raise UnavailableError(f"{self.key(number)} is being written by another") from error

    def _seen(self, number: int, data: bytes) -> Part[T]:
        try:
            value, epoch, nonce = self._codec.decode(data)
        except DataError as error:
            raise DataError(f"{self._store.uri}: {self.key(number)}: {error}") from error
        self.next_number = number + 1
        self.newest = max(self.newest, (epoch, nonce))
        return Part(number, epoch, nonce, value)
