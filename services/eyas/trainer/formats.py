"""A drafter as files: the native format of vLLM and the speculators format, out and in. Pure but for the reading.

vLLM leaves a tensor that a file lacks uninitialised, without a word. So `check` holds a checkpoint against the list of
tensors and keys that vLLM reads, before anyone is told of it.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from eyas.errors import DataError
from eyas.trainer.config import DrafterConfig
from eyas.trainer.vocabulary import Vocabulary

NATIVE, SPECULATORS = "vllm", "speculators"


def native_config(config: DrafterConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json in vLLM's native format.

    The layers stand in three places, since vLLM's runners and its drafter each read another.
    """
    layers = list(config.layer_ids)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layer_config(config, dtype),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.hidden_size,
        "eagle_aux_hidden_state_layer_ids": layers,
        "num_aux_hidden_states": len(layers),
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": layers},
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
    }


def speculators_config(
    config: DrafterConfig, dtype: torch.dtype, *, model: str, architectures: list[str], drafts: int
) -> dict[str, Any]:
    """config.json in the speculators format: `vllm serve` finds the `model` by it, and drafts `drafts` tokens."""
    layers = list(config.layer_ids)
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafts}],
            "verifier": {"name_or_path": model, "architectures": architectures},
        },
        "transformer_layer_config": {**_layer_config(config, dtype), "num_aux_hidden_states": len(layers)},
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.hidden_size,
        "eagle_aux_hidden_state_layer_ids": layers,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "tie_word_embeddings": False,
        "dtype": _name(dtype),
    }


def _layer_config(config: DrafterConfig, dtype: torch.dtype) -> dict[str, Any]:
    scaling = {key: value for key, value in config.rope.items() if key != "rope_theta"}
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope["rope_theta"],
        "rope_scaling": None if scaling == {"rope_type": "default"} else scaling,
        "max_position_embeddings": config.max_position_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": _name(dtype),
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tensors(weights: Mapping[str, Tensor], vocabulary: Vocabulary, dtype: torch.dtype) -> dict[str, Tensor]:
    """The native checkpoint: the drafter's state with the maps between vocabularies, if they differ."""
    result = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in weights.items()}
    if not vocabulary.whole:
        result |= {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}
    return result


def speculators_tensors(native: Mapping[str, Tensor], embedding_VH: Tensor) -> dict[str, Tensor]:
    """The speculators checkpoint: the layer is numbered, and the embedding is part of it."""
    dtype = native["fc.weight"].dtype
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in native.items()}
    return {**renamed, "embed_tokens.weight": embedding_VH.to("cpu", dtype).contiguous()}


def shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all that vLLM reads of a native checkpoint, embedding aside."""
    hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
    heads, groups, inputs = config.num_attention_heads, config.num_key_value_heads, len(config.layer_ids)
    layer = {
        "input_layernorm": (hidden,),
        "hidden_norm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (heads * size, 2 * hidden),
        "self_attn.k_proj": (groups * size, 2 * hidden),
        "self_attn.v_proj": (groups * size, 2 * hidden),
        "self_attn.o_proj": (hidden, heads * size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    result: dict[str, tuple[int, ...]] = {f"midlayer.{name}.weight": shape for name, shape in layer.items()}
    result |= {"fc.weight": (hidden, inputs * hidden), "norm.weight": (hidden,)}
    result["lm_head.weight"] = (config.draft_vocab_size, hidden)
    if config.fc_norm:
        result |= {f"fc_norm.{index}.weight": (hidden,) for index in range(inputs)}
    if config.draft_vocab_size != config.vocab_size:
        result |= {"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)}
    return result


def check(native: Mapping[str, Tensor], config: DrafterConfig) -> None:
    """Raises DataError unless a native checkpoint has what vLLM reads, nothing else, and only finite values."""
    expected = shapes(config)
    missing, extra = sorted(expected.keys() - native.keys()), sorted(native.keys() - expected.keys())
    if missing or extra:
        raise DataError(f"the drafter's checkpoint lacks {missing} and has {extra} that vLLM does not know")
    for name, tensor in native.items():
        if tuple(tensor.shape) != expected[name]:
            raise DataError(
                f"{name} of the drafter has shape {list(tensor.shape)}, vLLM expects {list(expected[name])}"
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise DataError(f"{name} of the drafter has values that are not finite in {_name(tensor.dtype)}")
    if "d2t" in native:
        ids = native["d2t"] + torch.arange(config.draft_vocab_size)
        allowed = torch.zeros(config.vocab_size, dtype=torch.bool)
        inside = bool(((ids >= 0) & (ids < config.vocab_size)).all())
        if inside:
            allowed[ids] = True
        if not inside or int(allowed.sum()) != len(ids) or not torch.equal(allowed, native["t2d"]):
            raise DataError("d2t and t2d of the drafter contradict each other: ids are out of range, or repeated")


def check_config(written: bytes, config: DrafterConfig) -> None:
    """Raises DataError unless a native config.json says what vLLM needs to build a drafter of this shape."""
    found = json.loads(written)
    layers = list(config.layer_ids)
    expected = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "eagle_aux_hidden_state_layer_ids": layers,
        "num_aux_hidden_states": len(layers),
        "tie_word_embeddings": False,
        "norm_before_residual": False,
    }
    wrong = [key for key, value in expected.items() if found.get(key) != value]
    if wrong or found["eagle_config"]["eagle_aux_hidden_state_layer_ids"] != layers:
        raise DataError(f"the drafter's config.json does not say what vLLM reads: {wrong or ['eagle_config']}")
