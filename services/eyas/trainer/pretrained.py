"""Warm start: reads a public EAGLE-3 checkpoint folder, in the native or the speculators format."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.errors import InputError
from eyas.trainer import formats
from eyas.trainer.config import DrafterConfig, rope_parameters
from eyas.trainer.model import Drafter
from eyas.trainer.vocabulary import Vocabulary, from_d2t

_IGNORED = ("embed_tokens.", "t2d", "d2t", "verifier_", "mask_hidden")


class Pretrained:
    """A checkpoint folder: what its drafter looks like, and its weights."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser()
        try:
            self._config: Mapping[str, Any] = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"training.fromPretrained {folder} has no config.json that can be read: give the folder of an EAGLE-3 "
                f"checkpoint ({error})"
            ) from error
        # The speculators format nests the layer's keys, and its own default of norm_before_residual differs in vLLM.
        self._speculators = "speculators_model_type" in self._config
        self._layer: Mapping[str, Any] = self._config.get("transformer_layer_config", self._config)

    def config(self, fresh: DrafterConfig) -> DrafterConfig:
        """The configuration to go on with: the checkpoint's layer, the run's model, layers and vocabulary.

        Raises InputError for a drafter of another model, or of a kind that is not trained here.
        """
        layer = self._layer
        self._refuse(layer.get("num_hidden_layers", 1) != 1, "has more than one layer")
        self._refuse(bool(layer.get("attention_bias")), "has biases in its attention")
        for key in ("norm_before_residual", "norm_before_fc"):
            self._refuse(bool(self._config.get(key, self._speculators and key == "norm_before_residual")), f"has {key}")
        for key, ours in (("hidden_size", fresh.hidden_size), ("vocab_size", fresh.vocab_size)):
            self._refuse(layer.get(key) != ours, f"has {key} {layer.get(key)} where the model has {ours}")
        layers = self._config.get("eagle_aux_hidden_state_layer_ids") or (self._config.get("eagle_config") or {}).get(
            "eagle_aux_hidden_state_layer_ids"
        )
        self._refuse(
            bool(layers) and tuple(layers or ()) != fresh.layer_ids,
            f"reads the layers {layers} where the run extracts {list(fresh.layer_ids)} (hiddenStates.layerIds)",
        )
        heads = int(layer["num_attention_heads"])
        return replace(
            fresh,
            intermediate_size=int(layer["intermediate_size"]),
            num_attention_heads=heads,
            num_key_value_heads=int(layer.get("num_key_value_heads") or heads),
            head_dim=int(layer.get("head_dim") or layer["hidden_size"] // heads),
            rms_norm_eps=float(layer.get("rms_norm_eps", fresh.rms_norm_eps)),
            rope=rope_parameters(layer),
            fc_norm=bool(self._config.get("fc_norm", False)),
            norm_output=bool(self._config.get("norm_output", False)),
        )

    @torch.no_grad()
    def load(self, drafter: Drafter, vocabulary: Vocabulary) -> int:
        """Copies the weights in; the head's rows go where this vocabulary has their ids.

        Rows of ids that the checkpoint could not draft are left as they are. Returns how many rows were found.
        """
        stored = self._tensors()
        found = {
            name.removeprefix("model.").replace("layers.0.", "midlayer."): tensor
            for name, tensor in stored.items()
            if not any(part in name for part in _IGNORED)
        }
        theirs = self._vocabulary(stored, found, vocabulary.size)
        head = found.pop("lm_head.weight")
        expected = {
            name: shape for name, shape in formats.shapes(drafter.config).items() if name in drafter.state_dict()
        }
        expected.pop("lm_head.weight")
        wrong = sorted(
            name for name in expected | found if tuple(found.get(name, torch.empty(0)).shape) != expected.get(name)
        )
        self._refuse(bool(wrong), f"lacks, or has in another shape: {', '.join(wrong)}")
        drafter.load_state_dict(found, strict=False)
        rows_W = theirs.draft_of[vocabulary.ids_W]
        known_W = rows_W >= 0
        drafter.lm_head.weight[known_W] = head[rows_W[known_W]].to(drafter.lm_head.weight.dtype)
        return int(known_W.sum())

    def _vocabulary(self, stored: Mapping[str, Tensor], found: Mapping[str, Tensor], size: int) -> Vocabulary:
        self._refuse("lm_head.weight" not in found, "has no lm_head.weight")
        rows = len(found["lm_head.weight"])
        self._refuse("d2t" not in stored and rows != size, "has a smaller vocabulary, and no d2t that maps it")
        offsets = stored.get("d2t", torch.zeros(rows, dtype=torch.int64)).long()
        ids = offsets + torch.arange(len(offsets))
        fits = len(offsets) == rows and bool(((ids >= 0) & (ids < size)).all())
        self._refuse(not fits, "has a d2t that does not fit its head, or the model")
        return from_d2t(offsets, size)

    def _tensors(self) -> dict[str, Tensor]:
        safe = sorted(self._folder.glob("*.safetensors"))
        if safe:
            return {name: tensor for path in safe for name, tensor in load_file(path).items()}
        pickled = self._folder / "pytorch_model.bin"
        self._refuse(not pickled.exists(), "has neither *.safetensors nor pytorch_model.bin")
        loaded: dict[str, Tensor] = torch.load(pickled, map_location="cpu", weights_only=True)
        return loaded

    def _refuse(self, wrong: bool, what: str) -> None:
        if wrong:
            raise InputError(
                f"training.fromPretrained {self._folder} {what}: start from another checkpoint, or from none"
            )
