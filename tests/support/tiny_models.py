"""Random models that start in seconds: Llama's shape, and the latent attention of DeepSeek and Kimi."""

import json
from pathlib import Path

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM

VOCABULARY = 512


def make_llama(folder: Path) -> Path:
    """Six layers, grouped attention."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
    )
    return _save(LlamaForCausalLM, config, folder)


def make_mla(folder: Path) -> Path:
    """DeepSeek-V3 with four layers, three of them with experts; ranks are those of vLLM's CPU kernel."""
    config = DeepseekV3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=512,
        q_lora_rank=64,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=64,
        max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 2048,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        bos_token_id=0,
        eos_token_id=1,
    )
    _save(DeepseekV3ForCausalLM, config, folder)
    path = folder / "config.json"
    # Published configs have both; transformers 5 writes neither, and vLLM then routes in another way.
    written = json.loads(path.read_text()) | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    path.write_text(json.dumps(written))
    return folder


def _save(model_class: type, config: object, folder: Path) -> Path:
    torch.manual_seed(0)
    model = model_class(config)
    with torch.no_grad():  # the usual initialisation is so small that every layer would look like the one before
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return folder
