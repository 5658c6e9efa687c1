"""Where a fresh drafter starts: as close to the model as can be before any data, so that little data goes far."""

import torch
from torch import nn

from eyas.trainer.model import Drafter
from eyas.trainer.target import Target
from eyas.trainer.vocabulary import Vocabulary

_STD = 0.02
_QUIET = 0.1


@torch.no_grad()
def initialise(drafter: Drafter, target: Target, vocabulary: Vocabulary, seed: int) -> None:
    """Fills a drafter in place.

    Head and final norm are the model's. The first h is the highest of the states that the drafter reads, on which the
    model's own last layers do little more; the layer adds little to it at first, so that `fit` may set its scale.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in drafter.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=_STD, generator=generator)
    drafter.lm_head.weight.copy_(target.head_VH[vocabulary.ids_W.to(target.head_VH.device)])
    drafter.norm.weight.copy_(target.norm_H)
    layer, hidden = drafter.midlayer, drafter.config.hidden_size
    layer.self_attn.o_proj.weight.mul_(_QUIET)
    layer.mlp.down_proj.weight.mul_(_QUIET)
    drafter.fc.weight.mul_(_QUIET)
    drafter.fc.weight[:, -hidden:] += torch.eye(hidden)
