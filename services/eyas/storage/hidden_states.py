"""The object that holds the hidden states of one sequence: a safetensors file whose size follows from its shape.

    token_ids      int64 [T]         the ids that went in
    hidden_states  dtype [T, L, H]   L layers in ascending depth; layer i is the input of layer i, the number of layers
                                     is the last output before the final norm

The header always takes `HEADER_BYTES`, so that a HEAD request tells whether an object is complete. Its name is the
hash of the ids, so that equal sequences are one object whoever writes them. Values are checked in
`hidden_states_check`; this module needs neither torch nor numpy.
"""

import hashlib
import json
import math
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eyas.errors import DataError

HEADER_BYTES = 1024
"""Length prefix and padded JSON: room for about a hundred layer ids."""

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of a value, by the name of its dtype as torch writes it."""

_NAMES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


@dataclass(frozen=True)
class HiddenStates:
    """An object as it was read. `values` are the bytes of hidden_states, C order, little endian."""

    token_ids: Sequence[int]
    shape: tuple[int, int, int]
    dtype: str
    layer_ids: tuple[int, ...]
    values: memoryview


def key(ids: Sequence[int]) -> str:
    """Names a sequence: SHA-256, hex, of its ids as little-endian int32."""
    return hashlib.sha256(_little_endian("i", ids)).hexdigest()


def object_size(tokens: int, layers: int, hidden: int, dtype: str) -> int:
    """Bytes of the object for `tokens` ids, `layers` layers and a hidden size of `hidden`."""
    return HEADER_BYTES + tokens * (8 + layers * hidden * ITEM_BYTES[dtype])


def header(tokens: int, layers: int, hidden: int, dtype: str, layer_ids: Sequence[int] = ()) -> bytes:
    """The bytes before the values: the same for the same arguments. `layer_ids` are kept as metadata.

    The ids as int64 follow, then the states.
    """
    ids_end = 8 * tokens
    described: dict[str, Any] = {
        "__metadata__": {"layer_ids": json.dumps(list(layer_ids))},
        "token_ids": {"dtype": "I64", "shape": [tokens], "data_offsets": [0, ids_end]},
        "hidden_states": {
            "dtype": _NAMES[dtype],
            "shape": [tokens, layers, hidden],
            "data_offsets": [ids_end, ids_end + tokens * layers * hidden * ITEM_BYTES[dtype]],
        },
    }
    text = json.dumps(described, separators=(",", ":")).encode()
    if len(text) > HEADER_BYTES - 8:
        raise DataError(f"{layers} layers do not fit into the header of a hidden-states object: extract fewer")
    return (HEADER_BYTES - 8).to_bytes(8, "little") + text.ljust(HEADER_BYTES - 8)


def prefix(ids: Sequence[int], layer_ids: Sequence[int], hidden: int, dtype: str) -> bytes:
    """All of an object but the states: header and ids."""
    return header(len(ids), len(layer_ids), hidden, dtype, layer_ids) + _little_endian("q", ids)


def parse(data: bytes, name: str) -> HiddenStates:
    """Reads an object. `name` stands for it in errors.

    Raises DataError where it is not a whole object of this format; values are not looked at.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        described = json.loads(data[8 : 8 + length])
        states, ids = described["hidden_states"], described["token_ids"]
        tokens, layers, hidden = states["shape"]
        dtype = _DTYPES[states["dtype"]]
        layer_ids = tuple(json.loads(described.get("__metadata__", {}).get("layer_ids", "[]")))
        start, end = (8 + length + offset for offset in states["data_offsets"])
        ids_start, ids_end = (8 + length + offset for offset in ids["data_offsets"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name} is not an object of hidden states: {error!r}") from error
    if ids["dtype"] != "I64" or ids["shape"] != [tokens]:
        raise DataError(f"{name} holds {tokens} rows, but token_ids is {ids['dtype']} {ids['shape']}")
    if end - start != math.prod((tokens, layers, hidden, ITEM_BYTES[dtype])) or ids_end - ids_start != 8 * tokens:
        raise DataError(f"{name} has offsets that do not fit its shapes")
    if len(data) != max(end, ids_end):
        raise DataError(f"{name} has {len(data)} bytes, its header says {max(end, ids_end)}: it is incomplete")
    return HiddenStates(
        _from_little_endian(data[ids_start:ids_end]),
        (tokens, layers, hidden),
        dtype,
        layer_ids,
        memoryview(data)[start:end],
    )


def _little_endian(code: str, values: Sequence[int]) -> bytes:
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _from_little_endian(data: bytes) -> list[int]:
    values = array("q", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
