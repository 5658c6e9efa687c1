"""The closed-form start: it finds a linear relation, whatever the sizes of the channels."""

import dataclasses

import pytest
import torch

from eyas.errors import DataError
from eyas.trainer.batch import Document
from eyas.trainer.config import DrafterConfig
from eyas.trainer.fit import apply, fit
from eyas.trainer.model import Drafter

CONFIG = DrafterConfig(
    hidden_size=8, intermediate_size=12, num_attention_heads=2, num_key_value_heads=2, head_dim=4, vocab_size=12,
    draft_vocab_size=4, layer_ids=(2, 3, 4), max_position_embeddings=64,
)  # fmt: skip
CPU = torch.device("cpu")


def documents(count=20, length=30):
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(8, 24, generator=generator)
    sizes = torch.logspace(-2, 3, 24)
    for index in range(count):
        states = torch.randn(length, 24, generator=generator)
        last = torch.cat([torch.zeros(1, 8), states[:-1] @ truth.T])
        supervised = torch.arange(length) >= 5
        yield Document(str(index), torch.zeros(length).long(), states * sizes, last, supervised)


def agreement(drafter):
    (document,) = documents(count=1)
    said = drafter.combine(document.inputs[:-1])
    return torch.nn.functional.cosine_similarity(said, document.last[1:], dim=-1)[4:].mean().item()


def test_the_first_states_point_where_the_model_goes_next():
    drafter = Drafter(CONFIG)
    assert abs(agreement(drafter)) < 0.5
    apply(fit(documents(), CPU), drafter, fresh=True)
    assert agreement(drafter) > 0.95


def test_a_pretrained_drafter_keeps_its_function():
    drafter = Drafter(CONFIG)
    before, native = agreement(drafter), drafter.native()
    apply(fit(documents(), CPU), drafter, fresh=False)
    assert agreement(drafter) == pytest.approx(before, abs=1e-4)
    torch.testing.assert_close(drafter.native(), native)
    assert drafter.input_scale.max() / drafter.input_scale.min() > 1000


def test_normed_inputs_are_left_alone():
    drafter = Drafter(dataclasses.replace(CONFIG, fc_norm=True))
    before = drafter.fc.weight.detach().clone()
    apply(fit(documents(), CPU), drafter, fresh=True)
    assert torch.equal(drafter.fc.weight, before)
    assert torch.equal(drafter.input_scale, torch.ones(24))


def test_nothing_to_fit_to():
    with pytest.raises(DataError):
        fit(iter(()), CPU)
