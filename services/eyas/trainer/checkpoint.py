"""Checkpoints of a training in object storage: numbered, created once, checksummed, the last two kept.

A checkpoint is one or more safetensors objects `checkpoints/000012/0000.safetensors` and, written last, its manifest
`checkpoints/000012.json` with their SHA-256 and the place in the training. One without a manifest, or whose sums do not
fit, does not exist: the one before it is taken.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import structlog
import torch
from safetensors.torch import load, save
from torch import Tensor

from eyas.errors import AlreadyExistsError, DataError, NotFoundError, ReplacedError
from eyas.storage.objects import ObjectStore

KEPT = 2
_OBJECT_BYTES = 1 << 30
_NAME = re.compile(r".*/(\d{6})(?:\.json|/\d{4}\.safetensors)")
_log = structlog.get_logger()


@dataclass(frozen=True)
class Place:
    """Where a training stands: the next batch is `batch` of `epoch`."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    """Seconds of work, over all restarts."""
    tokens: int = 0
    data_key: str = ""
    """What it was trained on: other data is another training."""


class Checkpoints:
    """The checkpoints below a prefix."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = f"{prefix}/checkpoints"

    def save(self, place: Place, tensors: Mapping[str, Tensor]) -> None:
        """Writes the next checkpoint and deletes those before the last two.

        Raises ReplacedError when another process writes checkpoints of this training.
        """
        number = max(self._numbers(), default=-1) + 1
        objects = []
        for index, part in enumerate(_parts(tensors)):
            data = save({name: tensor.contiguous().cpu() for name, tensor in part.items()})
            key = f"{self._prefix}/{number:06d}/{index:04d}.safetensors"
            self._create(key, data)
            objects.append({"key": key, "sha256": hashlib.sha256(data).hexdigest()})
        manifest = {"place": asdict(place), "objects": objects}
        self._create(self._manifest(number), json.dumps(manifest, indent=2).encode())
        self._delete_before(number - KEPT + 1)

    def load(self, data_key: str) -> tuple[Place, dict[str, Tensor]] | None:
        """The newest whole checkpoint of a training on this data, or None."""
        for number in sorted(self._numbers(), reverse=True):
            try:
                manifest = json.loads(self._store.get_blocking(self._manifest(number)))
                place = Place(**manifest["place"])
                if place.data_key != data_key:
                    _log.warning("checkpoint is of other data: training starts anew", checkpoint=number)
                    return None
                tensors: dict[str, Tensor] = {}
                for item in manifest["objects"]:
                    tensors |= load(self._verified(item))
            except (NotFoundError, DataError, ValueError) as error:
                _log.warning("checkpoint is not whole: the one before is taken", checkpoint=number, reason=str(error))
                continue
            return place, tensors
        return None

    def _verified(self, item: Mapping[str, Any]) -> bytes:
        data = self._store.get_blocking(item["key"])
        if hashlib.sha256(data).hexdigest() != item["sha256"]:
            raise DataError(f"{item['key']} is not what was written")
        return data

    def _create(self, key: str, data: bytes) -> None:
        try:
            self._store.create_blocking(key, data)
        except AlreadyExistsError as error:
            if self._store.get_blocking(key) != data:
                raise ReplacedError(f"another trainer has written {key}: this one ends") from error

    def _manifest(self, number: int) -> str:
        return f"{self._prefix}/{number:06d}.json"

    def _numbers(self) -> set[int]:
        keys = (info.key for info in self._store.list_blocking(self._prefix))
        return {int(match[1]) for key in keys if (match := _NAME.fullmatch(key))}

    def _delete_before(self, number: int) -> None:
        """Manifests first, so that what is half deleted does not exist."""
        keys = [info.key for info in self._store.list_blocking(self._prefix)]
        old = [key for key in keys if (match := _NAME.fullmatch(key)) and int(match[1]) < number]
        for key in sorted(old, key=lambda key: not key.endswith(".json")):
            asyncio.run(self._store.delete(key))


def _parts(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in sorted(tensors.items()):
        if part and size + tensor.nbytes > _OBJECT_BYTES:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += tensor.nbytes
    yield part


def gather(drafter: torch.nn.Module, optimizer: torch.optim.Optimizer, d2t: Tensor) -> dict[str, Tensor]:
    """All that a training must have to go on exactly: weights, optimiser, random state, vocabulary."""
    tensors = {f"drafter.{name}": tensor for name, tensor in drafter.state_dict().items()}
    names = {id(parameter): name for name, parameter in drafter.named_parameters()}
    for parameter, state in optimizer.state.items():
        tensors |= {f"optimizer.{key}.{names[id(parameter)]}": value for key, value in state.items()}
    return {**tensors, "d2t": d2t, "random": torch.get_rng_state()}


def restore(tensors: Mapping[str, Tensor], drafter: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Puts back what `gather` took."""
    own = {name.removeprefix("drafter."): tensor for name, tensor in tensors.items() if name.startswith("drafter.")}
    drafter.load_state_dict(own)
    parameters = dict(drafter.named_parameters())
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, field, name = key.split(".", 2)
            optimizer.state[parameters[name]][field] = value.to(parameters[name].device)
    torch.set_rng_state(tensors["random"])
