"""The parts of the model that training needs, read from its safetensors without loading the rest.

Needed are the embedding, the final norm and the head (the embedding again where they are tied).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from eyas.errors import InputError
from eyas.trainer.config import text_config
from eyas.trainer.model import rms_norm

_EMBEDDING, _NORM, _HEAD = "embed_tokens.weight", "norm.weight", "lm_head.weight"


class Weights:
    """Tensors of a checkpoint folder, or of a repository in the local cache, one file or many, by name."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.config: Mapping[str, Any] = json.loads(self._file("config.json").read_text(encoding="utf-8"))
        self._files: dict[str, Path] = {}
        index = self._found("model.safetensors.index.json")
        if index is not None:
            places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            files = {name: self._file(name) for name in set(places.values())}
            self._files = {tensor: files[name] for tensor, name in places.items()}
        else:
            path = self._file("model.safetensors")
            with _opened(path) as file:
                self._files = dict.fromkeys(file.keys(), path)

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._files)

    def get(self, name: str) -> Tensor:
        """One tensor, as stored."""
        with _opened(self._files[name]) as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def _found(self, name: str) -> Path | None:
        path = cached_file(
            self.uri,
            name,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        return Path(path) if path else None

    def _file(self, name: str) -> Path:
        try:
            path = self._found(name)
        except OSError as error:
            raise InputError(f"{self.uri} is no folder with a model, nor a repository that can be reached") from error
        if path is None:
            raise InputError(f"{self.uri} has no {name}: give the folder with the model's config and safetensors")
        return path


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: copy the model again ({error})") from error


@dataclass(frozen=True)
class Target:
    """The frozen parts of the model, on the device that trains, in float32."""

    embedding_VH: Tensor
    norm_H: Tensor
    head_VH: Tensor
    eps: float

    def normed(self, last_NH: Tensor) -> Tensor:
        """Last output before the final norm -> what the head reads."""
        return rms_norm(last_NH.float(), self.norm_H, self.eps)


def read_target(weights: Weights, device: torch.device) -> Target:
    """Reads embedding, final norm and head. Raises InputError when one is not there or not a plain matrix."""
    base = _base(weights)
    embedding = weights.get(base + _EMBEDDING).float().to(device)
    heads = [name for name in weights.names if name.endswith(_HEAD)]
    tied = text_config(weights.config).get("tie_word_embeddings", weights.config.get("tie_word_embeddings", False))
    if not heads and not tied:
        raise InputError(f"{weights.uri} has no {_HEAD} and does not tie it to its embedding")
    head = weights.get(min(heads, key=len)).float().to(device) if heads and not tied else embedding
    # Heads are often padded; the padding has no ids.
    head = head[: int(text_config(weights.config)["vocab_size"])]
    eps = float(text_config(weights.config).get("rms_norm_eps", 1e-6))
    return Target(embedding, weights.get(base + _NORM).float().to(device), head, eps)


def _base(weights: Weights) -> str:
    """Prefix of the language model's tensors, such as `model.`."""
    found = [
        name.removesuffix(_EMBEDDING)
        for name in weights.names
        if name.endswith(_EMBEDDING) and name.removesuffix(_EMBEDDING) + _NORM in weights.names
    ]
    if not found:
        raise InputError(
            f"{weights.uri} has no {_EMBEDDING} with a {_NORM} beside it: it is not a model that can be drafted"
        )
    return min(found, key=len)
