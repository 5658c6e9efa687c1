"""Copies of rows out of vLLM's paged cache, into host memory that is laid out as the object to be written.

Where the states lie: the group of the cache that holds the layer `cache_only_layers` gives each request blocks of
`block_size` tokens. The buffer [blocks, layers, tokens, hidden] may be cut into smaller blocks, so a token's slot
in the group is mapped to the buffer's own third dimension. Its strides differ between models; only its shape counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from eyas.errors import InputError
from eyas.storage import hidden_states
from eyas.vllm.connector.plan import Save

LAYER = "cache_only_layers"
"""Part of the name of the layer that `extract_hidden_states` stores into."""

_CHUNK_BYTES = 2**26  # gathered at once: device memory outside of what vLLM planned for


def find_group(groups: Iterable[Any]) -> tuple[int, int]:
    """Index and block size of the cache group with the hidden states, among vLLM's KVCacheGroupSpecs."""
    for index, group in enumerate(groups):
        if any(LAYER in name for name in group.layer_names):
            return index, int(group.kv_cache_spec.block_size)
    raise InputError(
        'the server extracts no hidden states: start it with --speculative-config \'{"method": "extract_hidden_states"'
        ", ...}'"
    )


def find_buffer(caches: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The buffer with the hidden states; None on a pipeline stage that has none."""
    return next((cache for name, cache in caches.items() if LAYER in name), None)


class Copy:
    """One object in host memory, complete once `done`."""

    def __init__(self, data: torch.Tensor, event: Any) -> None:
        self._data = data
        self._event = event

    def done(self) -> bool:
        """Whether the blocks may be reused."""
        return self._event is None or bool(self._event.query())

    def bytes(self) -> memoryview:
        """Waits for the copy, and gives the object without copying it again."""
        if self._event is not None:
            self._event.synchronize()
        return self._data.numpy().data


class Copier:
    """Starts copies from a buffer: on CUDA beside the model's work, on a stream of its own into pinned memory."""

    def __init__(self, buffer: torch.Tensor, block_size: int, layer_ids: Sequence[int]) -> None:
        self._dtype = str(buffer.dtype).removeprefix("torch.")
        known = buffer.dim() == 4 and buffer.shape[1] == len(layer_ids) and self._dtype in hidden_states.ITEM_BYTES
        if not known or block_size % buffer.shape[2]:
            raise InputError(
                f"the cache of hidden states is {self._dtype} {list(buffer.shape)}, for {len(layer_ids)} layers and "
                f"blocks of {block_size} tokens: this version of vLLM is not supported"
            )
        self._buffer = buffer
        self._block_size = block_size
        self._layer_ids = tuple(layer_ids)
        self._hidden = buffer.shape[3]
        self._stream = torch.cuda.Stream(buffer.device) if buffer.is_cuda else None  # type: ignore[no-untyped-call]

    def size(self, save: Save) -> int:
        """Bytes of the object."""
        return hidden_states.object_size(len(save.ids), len(self._layer_ids), self._hidden, self._dtype)

    def start(self, save: Save) -> Copy:
        """Copies the rows of `save` once the work that is queued on the current stream is done."""
        prefix = hidden_states.prefix(save.ids, self._layer_ids, self._hidden, self._dtype)
        data = torch.empty(self.size(save), dtype=torch.uint8, pin_memory=self._stream is not None)
        data[: len(prefix)] = torch.frombuffer(bytearray(prefix), dtype=torch.uint8)
        states = data[len(prefix) :].view(self._buffer.dtype).view(-1, len(self._layer_ids), self._hidden)
        if self._stream is None:
            self._gather(save, states)
            return Copy(data, None)
        self._stream.wait_stream(torch.cuda.current_stream(self._buffer.device))
        with torch.cuda.stream(self._stream):
            self._gather(save, states)
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return Copy(data, event)

    def _gather(self, save: Save, states: torch.Tensor) -> None:
        slots = self._slots(save)
        rows = max(1, _CHUNK_BYTES // states[0].nbytes)
        for some, target in zip(torch.split(slots, rows), torch.split(states, rows), strict=True):
            block, offset = some // self._buffer.shape[2], some % self._buffer.shape[2]
            target.copy_(self._buffer[block, :, offset], non_blocking=True)

    def _slots(self, save: Save) -> torch.Tensor:
        blocks = torch.tensor(save.blocks, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()[: len(save.ids)]
        if self._stream is None:
            return slots
        return slots.pin_memory().to(self._buffer.device, non_blocking=True)
