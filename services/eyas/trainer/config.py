"""What a drafter is: sizes, rotary embedding, and which of the model's layers it reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eyas.errors import InputError
from eyas.run.v1 import run_pb2 as pb

COPIED_ROPE = ("default", "linear", "llama3")
"""Rotary scalings that a fresh drafter takes over from the model; with others it gets the plain one."""


@dataclass(frozen=True)
class DrafterConfig:
    """Configuration of one EAGLE-3 drafter: a single Llama layer over the model's states."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    """Ids of the model."""
    draft_vocab_size: int
    """Ids that the drafter can draft."""
    layer_ids: tuple[int, ...]
    """Layers of the model whose inputs the drafter reads, ascending."""
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    """Rotary parameters, in transformers' names."""
    fc_norm: bool = False
    norm_output: bool = False


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config.json: multimodal models nest it."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary parameters of a config.json, old (`rope_theta`, `rope_scaling`) or new (`rope_parameters`)."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    return {**{k: v for k, v in scaling.items() if k != "type"}, "rope_type": kind, "rope_theta": float(theta)}


def for_model(
    model: Mapping[str, Any], training: pb.Training, layer_ids: tuple[int, ...], draft_vocab_size: int
) -> DrafterConfig:
    """A fresh drafter for a model, from its config.json. `layer_ids` are the three that it reads."""
    text = text_config(model)
    try:
        hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
        inner, vocabulary = int(text["intermediate_size"]), int(text["vocab_size"])
    except KeyError as error:
        raise InputError(
            f"the model's config.json has no {error}: it is not a language model that can be drafted"
        ) from None
    latent = "kv_lora_rank" in text
    head_dim = hidden // heads if latent else int(text.get("head_dim") or hidden // heads)
    rope = rope_parameters(text)
    if latent or rope["rope_type"] not in COPIED_ROPE or text.get("partial_rotary_factor", 1.0) != 1.0:
        rope = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return DrafterConfig(
        hidden_size=hidden,
        intermediate_size=training.intermediate_size or inner,
        num_attention_heads=heads,
        num_key_value_heads=heads if latent else int(text.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        vocab_size=vocabulary,
        draft_vocab_size=draft_vocab_size,
        layer_ids=layer_ids,
        max_position_embeddings=int(text["max_position_embeddings"]),
        rms_norm_eps=float(text.get("rms_norm_eps", 1e-5)),
        rope=rope,
        fc_norm=training.fc_norm,
        norm_output=training.norm_output,
    )
