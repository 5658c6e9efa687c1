"""The log of a training's steps: numbered JSON lists, each step once, however often it was done.

After a kill a training goes on at its last checkpoint and repeats the steps behind it with the same numbers; those that
are logged already are not logged again.
"""

import json
from collections.abc import Mapping
from typing import Any

from eyas.errors import AlreadyExistsError, ReplacedError
from eyas.storage.objects import ObjectStore


class StepLog:
    """Records below a prefix, written in parts."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._pending: list[Mapping[str, Any]] = []
        keys = [info.key for info in store.list_blocking(prefix)]
        self._next = len(keys)
        self._logged = json.loads(store.get_blocking(keys[-1]))[-1]["step"] if keys else 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Takes the record of a step; `flush` writes it."""
        if record["step"] > self._logged:
            self._pending.append(record)

    def flush(self) -> None:
        """Writes what is pending as the next part. Raises ReplacedError when another trainer writes here."""
        if not self._pending:
            return
        key = f"{self._prefix}/{self._next:06d}.json"
        data = json.dumps(self._pending).encode()
        try:
            self._store.create_blocking(key, data)
        except AlreadyExistsError as error:
            if self._store.get_blocking(key) != data:
                raise ReplacedError(f"another trainer has written {key}: this one ends") from error
        self._logged = int(self._pending[-1]["step"])
        self._pending = []
        self._next += 1
