"""Writes a drafter below a prefix of object storage, in the formats that vLLM loads."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from eyas.errors import DataError
from eyas.storage.objects import ObjectStore
from eyas.trainer import formats
from eyas.trainer.config import DrafterConfig, text_config
from eyas.trainer.model import Drafter
from eyas.trainer.vocabulary import Vocabulary

_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Exporter:
    """Exports drafters for one model."""

    store: ObjectStore
    model: str
    """Folder or repository of the model, which the speculators format names."""
    model_config: Mapping[str, Any]
    embedding_VH: Tensor
    drafts: int
    """Tokens drafted a step, unless the server is told otherwise."""

    @property
    def dtype(self) -> torch.dtype:
        """The model's own, bfloat16 where its config does not say."""
        said = self.model_config.get("dtype") or self.model_config.get("torch_dtype")
        said = said or text_config(self.model_config).get("dtype") or text_config(self.model_config).get("torch_dtype")
        dtype: torch.dtype = getattr(torch, said) if said in _DTYPES else torch.bfloat16
        return dtype

    def native(self, prefix: str, drafter: Drafter, vocabulary: Vocabulary) -> dict[str, str]:
        """vLLM's native format. Returns keys, relative to `prefix`, with their SHA-256."""
        tensors = self._checked(drafter.config, drafter, vocabulary)
        config = formats.native_config(drafter.config, self.dtype)
        return self._write(prefix, config, tensors)

    def speculators(self, prefix: str, drafter: Drafter, vocabulary: Vocabulary) -> dict[str, str]:
        """The speculators format, in the same way."""
        native = self._checked(drafter.config, drafter, vocabulary)
        config = formats.speculators_config(
            drafter.config,
            self.dtype,
            model=self.model,
            architectures=list(self.model_config.get("architectures") or []),
            drafts=self.drafts,
        )
        return self._write(prefix, config, formats.speculators_tensors(native, self.embedding_VH))

    def _checked(self, config: DrafterConfig, drafter: Drafter, vocabulary: Vocabulary) -> dict[str, Tensor]:
        tensors = formats.tensors(drafter.native(), vocabulary, self.dtype)
        formats.check(tensors, config)
        return tensors

    def _write(self, prefix: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, str]:
        files = {
            "model.safetensors": save(dict(tensors), metadata={"format": "pt"}),
            "config.json": json.dumps(config, indent=2).encode() + b"\n",
        }
        for name, data in files.items():
            self.store.put_blocking(f"{prefix}/{name}", data)
            if self.store.head_blocking(f"{prefix}/{name}").size != len(data):
                raise DataError(f"{prefix}/{name} did not arrive whole: write it again")
        return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
