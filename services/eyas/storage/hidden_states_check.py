"""Guards on the values of hidden states: broken ones train a drafter that looks converged and is never accepted."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eyas.errors import DataError
from eyas.storage.hidden_states import HiddenStates

_ROWS = 256  # at a time: float32 copies of a long sequence would take gigabytes


def check(states: HiddenStates, ids: Sequence[int], layer_ids: Sequence[int], name: str) -> None:
    """Raises DataError unless `states` are those of `ids` at `layer_ids`, finite, and each row varies.

    A row is one token at one layer; rows of zeros, or of one value, are what slots that were never written hold.
    `name` stands for the object, or the sample, in errors.
    """
    tokens, layers, _ = states.shape
    if list(states.token_ids) != list(ids):
        raise DataError(f"{name} holds the states of other ids: {tokens} of them, {len(ids)} are expected")
    if layers != len(layer_ids) or (states.layer_ids and states.layer_ids != tuple(layer_ids)):
        raise DataError(
            f"{name} holds {layers} layers {list(states.layer_ids)}, {list(layer_ids)} are expected: "
            "extract again into another run"
        )
    for first in range(0, tokens, _ROWS):
        rows = _rows(states, first, min(first + _ROWS, tokens))
        _refuse(~np.isfinite(rows).all(axis=-1), first, name, layer_ids, "is not finite")
        _refuse(rows.max(axis=-1) == rows.min(axis=-1), first, name, layer_ids, "has one value throughout")


def _rows(states: HiddenStates, first: int, last: int) -> Any:
    """Rows as float32 [rows, L, H]."""
    _, layers, hidden = states.shape
    stored = np.uint16 if states.dtype == "bfloat16" else np.dtype(states.dtype)
    values = np.frombuffer(states.values, dtype=stored).reshape(-1, layers, hidden)[first:last]
    if states.dtype == "bfloat16":  # numpy has none: it is the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _refuse(bad: Any, first: int, name: str, layer_ids: Sequence[int], what: str) -> None:
    if bad.any():
        row, layer = (int(index) for index in np.argwhere(bad)[0])
        raise DataError(f"{name}: the state of token {first + row} at layer {layer_ids[layer]} {what}")
