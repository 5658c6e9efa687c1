"""The model in transformers, and the states after some of its layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from eyas.errors import InputError
from eyas.storage import hidden_states


class Model:
    """A model without its head. Layer i means the input of layer i, which is the output of the layer before it; so the
    last one is what the final norm gets.

    Raises InputError when `uri` can't be loaded, or has no such layers.
    """

    def __init__(self, uri: str, dtype: str, layer_ids: Sequence[int]) -> None:
        try:
            model = AutoModel.from_pretrained(uri, dtype=dtype or "auto")
        except (OSError, ValueError) as error:
            raise InputError(f"transformers cannot load {uri}: {' '.join(str(error).split())}") from error
        config = model.config.get_text_config()
        layers = _layers(model, config.num_hidden_layers)
        if layers is None or not layer_ids or not 1 <= min(layer_ids) <= max(layer_ids) <= len(layers):
            raise InputError(
                f"{uri} has no layers {list(layer_ids)}: its layers are 1 to {config.num_hidden_layers}, "
                "and 0, the embeddings, cannot be extracted"
            )
        self._dtype = str(model.dtype).removeprefix("torch.")
        if self._dtype not in hidden_states.ITEM_BYTES:
            raise InputError(f"{uri} computes in {self._dtype}: set vllm.dtype to one of float32, bfloat16, float16")
        self._hidden: int = config.hidden_size
        self._layer_ids = tuple(layer_ids)
        self._model = model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
        self._states: dict[int, Tensor] = {}
        for layer_id in layer_ids:
            layers[layer_id - 1].register_forward_hook(self._keep(layer_id))

    def object_size(self, tokens: int) -> int:
        """Bytes of the object for a sequence."""
        return hidden_states.object_size(tokens, len(self._layer_ids), self._hidden, self._dtype)

    def extract(self, ids: Sequence[int]) -> memoryview:
        """The object for a sequence. Raises InputError when memory does not suffice."""
        prefix = hidden_states.prefix(ids, self._layer_ids, self._hidden, self._dtype)
        data = torch.empty(self.object_size(len(ids)), dtype=torch.uint8)
        data[: len(prefix)] = torch.frombuffer(bytearray(prefix), dtype=torch.uint8)
        states = data[len(prefix) :].view(self._model.dtype).view(len(ids), len(self._layer_ids), self._hidden)
        try:
            with torch.inference_mode():
                self._model(input_ids=torch.tensor([list(ids)], device=self._model.device), use_cache=False)
        except torch.OutOfMemoryError as error:
            raise InputError(
                f"no memory for a sequence of {len(ids)} tokens: set hiddenStates.maxTokens lower"
            ) from error
        for index, layer_id in enumerate(self._layer_ids):
            states[:, index] = self._states[layer_id]
        self._states.clear()
        return data.numpy().data

    def _keep(self, layer_id: int) -> Any:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            self._states[layer_id] = (output[0] if isinstance(output, tuple) else output)[0]

        return keep


def _layers(model: nn.Module, number: int) -> nn.ModuleList | None:
    """The decoder's layers, also inside of a model that sees or hears."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in ("layers", "h") and isinstance(module, nn.ModuleList) and len(module) == number:
            return module
    return None
