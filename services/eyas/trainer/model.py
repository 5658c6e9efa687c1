"""The EAGLE-3 drafter and its training-time test (arXiv 2503.01840; equations as in the published code).

Row p starts from h = fc(states of the model at p). Step k feeds the id at p + 1 + k and h through one Llama layer whose
attention reads [norm(embedding); norm(h)], keeps h itself as residual, and passes its output on, before the final norm,
as the next step's h. The head reads the normed output. Parameter names are those of the checkpoint that vLLM loads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eyas.trainer.attention import step_attention
from eyas.trainer.batch import Batch, Plan
from eyas.trainer.config import DrafterConfig


class RMSNorm(nn.Module):
    """Root mean square norm; the mean is taken in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, with the mean in float32."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight * scaled).to(x.dtype)


class Rotary(nn.Module):
    """Rotary embedding with any scaling that transformers knows by a constant inverse frequency."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        rope = dict(config.rope)
        kind, theta = rope["rope_type"], rope["rope_theta"]
        if kind == "default":
            exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
            frequency, self.factor = (theta**-exponent).float(), 1.0
        else:
            llama = LlamaConfig(
                hidden_size=config.hidden_size,
                num_attention_heads=config.num_attention_heads,
                head_dim=config.head_dim,
                max_position_embeddings=config.max_position_embeddings,
                rope_parameters=rope,
            )
            frequency, self.factor = ROPE_INIT_FUNCTIONS[kind](llama, torch.device("cpu"))
        self.frequency: Tensor
        self.register_buffer("frequency", frequency, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates x [P, heads, D] by positions [P], halves as in Llama."""
        angle = positions[:, None].float() * self.frequency
        cos, sin = (angle.cos() * self.factor)[:, None, :], (angle.sin() * self.factor)[:, None, :]
        left, right = x.float().chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Projections of the layer's attention; inputs are 2H wide."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(2 * hidden, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(2 * hidden, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(2 * hidden, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, hidden, bias=False)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        result: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    """The drafter's one layer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = MLP(config)


@dataclass(frozen=True)
class Outputs:
    """What K steps made for R rows."""

    hidden_KRH: list[Tensor]  # the layer's output before the final norm
    normed_KRH: list[Tensor]  # after it: what the head reads


class Drafter(nn.Module):
    """An EAGLE-3 drafter. `native`, with d2t and t2d beside it, is the checkpoint that vLLM loads.

    A few channels of a model's states are hundreds of times larger than the rest, and one step of the optimiser along
    them throws the drafter far away. So `fc` reads channels that are divided by their size, and `native` folds the
    divisors into its weight: the same function, conditioned better.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        inputs = len(config.layer_ids)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(inputs))
        self.fc = nn.Linear(inputs * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.rotary = Rotary(config)
        self.input_scale: Tensor
        self.register_buffer("input_scale", torch.ones(inputs * config.hidden_size))

    @torch.no_grad()
    def standardise(self, sizes_I: Tensor) -> None:
        """Divides the channels of the inputs by their sizes; the function stays as it is.

        With `fc_norm` the inputs are normed already, and nothing is done.
        """
        if not self.config.fc_norm:
            scale_I = (1 / sizes_I).to(self.input_scale)
            self.fc.weight.mul_(self.input_scale / scale_I)
            self.input_scale.copy_(scale_I)

    def native(self) -> dict[str, Tensor]:
        """Weights by the names of the native checkpoint."""
        state = {name: parameter.detach() for name, parameter in self.named_parameters()}
        state["fc.weight"] = state["fc.weight"] * self.input_scale
        return state

    def combine(self, inputs_NI: Tensor) -> Tensor:
        """The states of the model's layers -> the drafter's first h."""
        if self.config.fc_norm:
            parts = inputs_NI.chunk(len(self.config.layer_ids), dim=-1)
            inputs_NI = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        result: Tensor = self.fc(inputs_NI * self.input_scale.to(inputs_NI.dtype))
        return result

    def forward(self, batch: Batch, plan: Plan, embedding_VH: Tensor) -> Outputs:
        """Runs the plan's steps over a batch; `embedding_VH` is the model's, frozen.

        The keys of step 0 are made for all N positions, everything else only for the R rows that are trained: a row
        without a target reaches the loss through its step-0 key and value alone. The last position of a document reads
        the next document's first id; nothing that is trained attends to it.
        """
        layer, config = self.midlayer, self.config
        attention = layer.self_attn
        groups, size = config.num_key_value_heads, config.head_dim
        h_NH = self.combine(batch.inputs_NI)
        e_NH = embedding_VH[batch.ids_N.roll(-1)].to(h_NH.dtype)
        z_NZ = torch.cat([layer.input_layernorm(e_NH), layer.hidden_norm(h_NH)], dim=-1)
        k_NGD = self.rotary(attention.k_proj(z_NZ).view(-1, groups, size), plan.offsets_N)
        v_NGD = attention.v_proj(z_NZ).view(-1, groups, size)
        rows_R, offsets_R = plan.rows_R, plan.offsets_N[plan.rows_R]
        h_RH, z_RZ = h_NH[rows_R], z_NZ[rows_R]
        own_k: list[Tensor] = []
        own_v: list[Tensor] = []
        outputs = Outputs([], [])
        for step in range(plan.next_RK.shape[1]):
            if step:
                e_RH = embedding_VH[batch.ids_N[plan.next_RK[:, step]]].to(h_RH.dtype)
                z_RZ = torch.cat([layer.input_layernorm(e_RH), layer.hidden_norm(h_RH)], dim=-1)
                own_k.append(self.rotary(attention.k_proj(z_RZ).view(-1, groups, size), offsets_R + step))
                own_v.append(attention.v_proj(z_RZ).view(-1, groups, size))
            q_RAD = self.rotary(attention.q_proj(z_RZ).view(-1, config.num_attention_heads, size), offsets_R + step)
            own = [torch.stack(x, 2) if x else k_NGD.new_zeros(len(rows_R), groups, 0, size) for x in (own_k, own_v)]
            mixed_RAD = step_attention(
                q_RAD,
                k_NGD,
                v_NGD,
                own_k_RGSD=own[0],
                own_v_RGSD=own[1],
                positions_R=rows_R,
                segments=plan.segments,
            )
            a_RH = h_RH + attention.o_proj(mixed_RAD.flatten(1))
            h_RH = a_RH + layer.mlp(layer.post_attention_layernorm(a_RH))
            normed_RH = self.norm(h_RH)
            outputs.hidden_KRH.append(h_RH)
            outputs.normed_KRH.append(normed_RH)
            if config.norm_output:
                h_RH = normed_RH
        return outputs
