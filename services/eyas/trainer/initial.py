"""Where a fresh drafter starts: as close to the model as one layer can be, so that little data goes far."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from eyas.trainer.model import Drafter
from eyas.trainer.target import Target
from eyas.trainer.vocabulary import Vocabulary

_STD = 0.02


@torch.no_grad()
def initialise(
    drafter: Drafter, target: Target, vocabulary: Vocabulary, layer: Mapping[str, Tensor], seed: int
) -> None:
    """Fills a drafter in place.

    Head and final norm are the model's. The first h is the highest of the states that the drafter reads, on which the
    model's own last layers do little more; the MLP is that of `layer` (a layer of the model) where it fits.
    """
    fitting = {name: tensor for name, tensor in layer.items() if name.startswith("mlp.")}
    generator = torch.Generator().manual_seed(seed)
    for parameter in drafter.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=_STD, generator=generator)
    drafter.lm_head.weight.copy_(target.head_VH[vocabulary.ids_W.to(target.head_VH.device)])
    drafter.norm.weight.copy_(target.norm_H)
    own = drafter.midlayer.state_dict()
    for name, tensor in fitting.items():
        if name in own and own[name].shape == tensor.shape:
            own[name].copy_(tensor)
    hidden = drafter.config.hidden_size
    drafter.fc.weight.mul_(0.1)
    drafter.fc.weight[:, -hidden:] += torch.eye(hidden)
