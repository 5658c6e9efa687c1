"""The object of hidden states: its name, its header, its size, and what is refused."""

import hashlib
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from eyas.errors import DataError
from eyas.storage import hidden_states
from eyas.storage.hidden_states_check import check

DTYPES = st.sampled_from(sorted(hidden_states.ITEM_BYTES))
LAYERS = [2, 5, 9]


def make(ids, dtype="float32", layer_ids=LAYERS, hidden=8, edit=None):
    states = torch.randn(len(ids), len(layer_ids), hidden).to(getattr(torch, dtype))
    if edit is not None:
        edit(states)
    data = hidden_states.prefix(ids, layer_ids, hidden, dtype) + states.view(torch.uint8).numpy().tobytes()
    return data, states


def test_key_is_the_hash_of_little_endian_int32():
    assert hidden_states.key([1, 128000, 163606]) == hashlib.sha256(struct.pack("<3i", 1, 128000, 163606)).hexdigest()
    assert hidden_states.key([1, 2]) != hidden_states.key([2, 1])


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40), DTYPES, st.integers(1, 5), st.integers(1, 33))
def test_any_object_is_read_by_safetensors_and_by_parse(ids, dtype, layers, hidden):
    layer_ids = list(range(1, layers + 1))
    data, states = make(ids, dtype, layer_ids, hidden)
    assert len(data) == hidden_states.object_size(len(ids), layers, hidden, dtype)
    assert data.startswith(hidden_states.header(len(ids), layers, hidden, dtype, layer_ids))
    loaded = load(data)
    assert loaded["token_ids"].tolist() == ids
    assert torch.equal(loaded["hidden_states"], states)
    parsed = hidden_states.parse(data, "it")
    assert (parsed.token_ids, parsed.shape, parsed.dtype) == (ids, (len(ids), layers, hidden), dtype)
    assert parsed.layer_ids == tuple(layer_ids)
    again = torch.frombuffer(bytearray(parsed.values), dtype=getattr(torch, dtype)).view(parsed.shape)
    assert torch.equal(again, states)


def test_header_always_takes_the_same_room():
    for tokens, layers in ((1, 1), (8191, 4), (1_000_000, 61)):
        ids = list(range(layers))
        assert len(hidden_states.header(tokens, layers, 7168, "bfloat16", ids)) == hidden_states.HEADER_BYTES
    with pytest.raises(DataError, match="extract fewer"):
        hidden_states.header(1, 400, 8, "float16", list(range(400)))


def test_any_cut_is_noticed():
    data, _ = make([1, 2, 3])
    for size in (0, 7, 8, 100, hidden_states.HEADER_BYTES, len(data) - 1):
        with pytest.raises(DataError, match="it"):
            hidden_states.parse(data[:size], "it")
    with pytest.raises(DataError, match="incomplete"):
        hidden_states.parse(data + b"\0", "it")


def test_a_header_that_contradicts_itself_is_refused():
    data, _ = make([1, 2, 3])
    with pytest.raises(DataError, match="rows, but token_ids"):
        hidden_states.parse(data.replace(b'"shape":[3]', b'"shape":[2]'), "it")
    with pytest.raises(DataError, match="offsets"):
        hidden_states.parse(data.replace(b'"shape":[3,3,8]', b'"shape":[3,3,9]'), "it")
    with pytest.raises(DataError, match="not an object"):
        hidden_states.parse(data.replace(b'"F32"', b'"F64"'), "it")


def checked(ids, data, layer_ids=LAYERS):
    check(hidden_states.parse(data, "sample 7"), ids, layer_ids, "sample 7")


@given(DTYPES)
def test_good_states_pass(dtype):
    ids = list(range(300))
    checked(ids, make(ids, dtype)[0])


@pytest.mark.parametrize("dtype", sorted(hidden_states.ITEM_BYTES))
@pytest.mark.parametrize(
    ("value", "what"),
    [(float("nan"), "finite"), (float("inf"), "finite"), (0.0, "one value"), (1.5, "one value")],
)
def test_broken_rows_are_found_and_named(dtype, value, what):
    def edit(states):
        states[290, 1, slice(2, 3) if what == "finite" else slice(None)] = value

    ids = list(range(300))
    with pytest.raises(DataError, match=rf"sample 7: the state of token 290 at layer 5 .*{what}"):
        checked(ids, make(ids, dtype, edit=edit)[0])


def test_other_ids_and_other_layers_are_refused():
    data, _ = make([1, 2, 3])
    with pytest.raises(DataError, match="other ids"):
        checked([1, 2, 4], data)
    with pytest.raises(DataError, match="other ids"):
        checked([1, 2], data)
    for layer_ids in ([2, 5, 8], [2, 5]):
        with pytest.raises(DataError, match="another run"):
            checked([1, 2, 3], data, layer_ids)
