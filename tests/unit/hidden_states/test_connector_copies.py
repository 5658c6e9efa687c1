"""Rows come out of the paged cache as the object that is written."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.errors import InputError
from eyas.storage import hidden_states
from eyas.vllm.connector import copies
from eyas.vllm.connector.copies import Copier, find_buffer, find_group
from eyas.vllm.connector.plan import Save

LAYERS = (2, 3, 6)


def make_buffer(tokens, dtype=torch.float32, kernel_block=4, *, tokens_first=False):
    """A cache in which the state of slot s at layer l is s + l / 10, in either order of memory."""
    shape = (tokens // kernel_block, len(LAYERS), kernel_block, 2)
    buffer = torch.empty(shape, dtype=dtype)
    if tokens_first:
        buffer = torch.empty((shape[0], shape[2], shape[1], shape[3]), dtype=dtype).permute(0, 2, 1, 3)
    for slot in range(tokens):
        for layer in range(len(LAYERS)):
            buffer[slot // kernel_block, layer, slot % kernel_block] = slot + layer / 10
    return buffer


@settings(max_examples=40)
@given(st.data(), st.sampled_from(["float16", "bfloat16", "float32"]), st.booleans(), st.sampled_from([1, 16, 10**6]))
def test_rows_are_found_whatever_the_blocks(data, dtype, tokens_first, chunk):
    kernel_block = data.draw(st.sampled_from([2, 4, 8]))
    block = kernel_block * data.draw(st.sampled_from([1, 2]))
    buffer = make_buffer(64, getattr(torch, dtype), kernel_block, tokens_first=tokens_first)
    blocks = data.draw(st.permutations(range(64 // block)))
    rows = data.draw(st.integers(1, 64))
    save = Save("r", "k", list(range(rows)), blocks)
    copier = Copier(buffer, block, LAYERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_CHUNK_BYTES", chunk)
        copy = copier.start(save)
    assert copy.done()
    got = hidden_states.parse(bytes(copy.bytes()), "it")
    assert len(copy.bytes()) == copier.size(save)
    assert (got.token_ids, got.dtype, got.layer_ids) == (save.ids, dtype, LAYERS)
    states = torch.frombuffer(bytearray(got.values), dtype=buffer.dtype).view(got.shape)
    slots = torch.tensor([blocks[row // block] * block + row % block for row in range(rows)])
    expected = (slots[:, None] + torch.arange(3) / 10).to(buffer.dtype)[:, :, None].expand(-1, -1, 2)
    assert torch.equal(states, expected)


def test_a_copy_is_not_changed_by_the_next_owner_of_the_blocks():
    buffer = make_buffer(16)
    copy = Copier(buffer, 4, LAYERS).start(Save("r", "k", [1, 2], [1]))
    before = bytes(copy.bytes())
    buffer.zero_()
    assert bytes(copy.bytes()) == before


def test_the_group_is_found_by_the_layer_name():
    spec = SimpleNamespace(block_size=16), SimpleNamespace(block_size=32)
    groups = [
        SimpleNamespace(layer_names=["model.layers.0.attn"], kv_cache_spec=spec[0]),
        SimpleNamespace(layer_names=["model.layers.1.attn", "cache_only_layers.6"], kv_cache_spec=spec[1]),
    ]
    assert find_group(groups) == (1, 32)
    with pytest.raises(InputError, match="extract_hidden_states"):
        find_group(groups[:1])
    buffer = make_buffer(8)
    assert find_buffer({"model.layers.0.attn": torch.zeros(1), "cache_only_layers.6": buffer}) is buffer
    assert find_buffer({"model.layers.0.attn": torch.zeros(1)}) is None


@pytest.mark.parametrize(
    ("buffer", "block"),
    [
        (torch.zeros(4, 3, 2), 4),
        (torch.zeros(4, 2, 4, 8), 4),
        (torch.zeros(4, 3, 4, 8), 6),
        (torch.zeros(4, 3, 4, 8, dtype=torch.int8), 4),
    ],
)
def test_a_cache_of_another_shape_is_refused(buffer, block):
    with pytest.raises(InputError, match="not supported"):
        Copier(buffer, block, LAYERS)
