"""What a command asks for, and how it fits a run that is there already."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.cli.place import Place
from eyas.errors import InputError, NotFoundError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2 as pb
from eyas.storage.layout import RunLayout
from eyas.storage.objects import open_store

_CHANGEABLE = (
    "endpoints",
    "evaluation",
    "generation.concurrency",
    "generation.priority",
    "hiddenStates.concurrency",
    "thresholds",
    "timeouts",
    "training",
    "vllm",
)
"""Settings that a run may change on its way: no answer that is there would be another with them."""


@dataclass(frozen=True)
class Request:
    """A stage to reach in a run."""

    place: Place
    until: pb.Stage.ValueType
    vllm_python: Path
    mapping: Mapping[str, Any] | None
    """The spec as people write it; None to go on with the one that is stored."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Settings of the stored spec to change: dotted path to JSON."""


async def stored(place: Place) -> pb.RunSpec | None:
    """What the run was asked at its beginning; None when there is no run yet."""
    try:
        return specs.from_json(await open_store(place.root).get(RunLayout(place.run).spec))
    except NotFoundError:
        return None


def changes(asked: pb.RunSpec, there: pb.RunSpec, place: Place) -> dict[str, str]:
    """Settings to change so that the run there does what is asked: dotted path to JSON.

    Raises InputError when it is another run: another model, dataset or way to generate.
    """
    differing = {text.partition(":")[0]: text for text in specs.differences(asked, there)}
    fixed = [text for path, text in differing.items() if not path.startswith(_CHANGEABLE)]
    if fixed:
        raise InputError(
            f"{place.output} holds a run of another spec ({'; '.join(fixed)}): "
            "choose another --output, or ask for the same"
        )
    _same_model(asked.model.fingerprint, there.model.fingerprint, place)
    mapping = specs.to_mapping(asked)
    return {path: json.dumps(_value(mapping, path)) for path in differing}


def _same_model(asked: pb.ModelFingerprint, there: pb.ModelFingerprint, place: Place) -> None:
    for name in ("tokenizer_hash", "vocab_size", "root", "context"):
        ours, theirs = getattr(asked, name), getattr(there, name)
        if ours and theirs and ours != theirs:
            raise InputError(
                f"the model has changed under {place.output} ({name}: {ours!r}, there {theirs!r}): "
                "serve the model that the run began with, or choose another --output"
            )


def _value(mapping: Mapping[str, Any], path: str) -> Any:
    value: Any = mapping
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
