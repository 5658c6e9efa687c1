"""What is exported is what vLLM reads; a public checkpoint comes back in, remapped."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file

from eyas.errors import DataError, InputError
from eyas.trainer import formats
from eyas.trainer.config import DrafterConfig
from eyas.trainer.model import Drafter
from eyas.trainer.pretrained import Pretrained
from eyas.trainer.vocabulary import Vocabulary

CONFIG = DrafterConfig(
    hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=4, vocab_size=12,
    draft_vocab_size=4, layer_ids=(2, 3, 4), max_position_embeddings=64,
)  # fmt: skip
WORDS = Vocabulary(torch.tensor([1, 4, 5, 9]), 12)


def native(config=CONFIG, words=WORDS):
    torch.manual_seed(0)
    return formats.tensors(Drafter(config).native(), words, torch.float16)


@pytest.mark.parametrize("changes", [{}, {"fc_norm": True}, {"norm_output": True}])
def test_a_drafter_has_exactly_what_vllm_reads(changes):
    config = dataclasses.replace(CONFIG, **changes)
    tensors = native(config)
    formats.check(tensors, config)
    assert tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].dtype == torch.bool
    assert not any(name.startswith("model.") for name in tensors)


def test_the_whole_vocabulary_needs_no_map():
    """vLLM has no place for d2t then, and refuses a file that has it."""
    config = dataclasses.replace(CONFIG, draft_vocab_size=12)
    tensors = native(config, Vocabulary(torch.arange(12), 12))
    formats.check(tensors, config)
    assert "d2t" not in tensors


def broken(change):
    tensors = native()
    change(tensors)
    return tensors


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.pop("norm.weight"), "lacks.*norm.weight"),
        (lambda t: t.pop("d2t"), "lacks.*d2t"),
        (lambda t: t.update(extra=torch.zeros(1)), "extra"),
        (lambda t: t.update({"fc.weight": torch.zeros(16, 16)}), "shape"),
        (lambda t: t["lm_head.weight"].fill_(float("nan")), "not finite"),
        (lambda t: t["fc.weight"].fill_(float("inf")), "not finite"),
        (lambda t: t["d2t"].fill_(0), "contradict"),
        (lambda t: t["d2t"].fill_(-3), "contradict"),
        (lambda t: t["d2t"].copy_(torch.tensor([1, 3, 2, 50])), "contradict"),
    ],
)
def test_a_checkpoint_that_vllm_would_misread_is_refused(change, match):
    with pytest.raises(DataError, match=match):
        formats.check(broken(change), CONFIG)


def test_layers_stand_where_each_of_vllms_readers_looks():
    config = formats.native_config(CONFIG, torch.float16)
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert config["num_aux_hidden_states"] == 3
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert config["max_position_embeddings"] == 64
    speculators = formats.speculators_config(CONFIG, torch.float16, model="m", architectures=["X"], drafts=3)
    assert speculators["norm_before_residual"] is False  # vLLM's default for this format is True
    assert speculators["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert speculators["speculators_config"]["verifier"] == {"name_or_path": "m", "architectures": ["X"]}


def written(folder, form):
    tensors = {name: tensor.clone() for name, tensor in native().items()}
    if form == "vllm":
        config = formats.native_config(CONFIG, torch.float16)
    else:
        config = formats.speculators_config(CONFIG, torch.float16, model="m", architectures=[], drafts=3)
        tensors = formats.speculators_tensors(tensors, torch.zeros(12, 16))
    (folder / "config.json").write_text(json.dumps(config))
    if form == "pickled":
        torch.save(native(), folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("form", ["vllm", "speculators", "pickled"])
def test_a_checkpoint_comes_back_with_its_own_vocabulary_remapped(tmp_path, form):
    pretrained = Pretrained(str(written(tmp_path, form)))
    fresh = dataclasses.replace(CONFIG, intermediate_size=99, draft_vocab_size=5)
    config = pretrained.config(fresh)
    assert (config.intermediate_size, config.draft_vocab_size) == (24, 5)
    drafter = Drafter(config)
    before = drafter.lm_head.weight.detach().clone()
    words = Vocabulary(torch.tensor([0, 4, 5, 8, 9]), 12)
    assert pretrained.load(drafter, words) == 3
    theirs = native()
    assert torch.equal(drafter.fc.weight, theirs["fc.weight"].float())
    head = drafter.lm_head.weight.detach()
    assert torch.equal(head[[1, 2, 4]], theirs["lm_head.weight"][[1, 2, 3]].float())
    assert torch.equal(head[[0, 3]], before[[0, 3]])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"hidden_size": 8}, "hidden_size 8"),
        ({"num_hidden_layers": 2}, "more than one layer"),
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, "reads the layers"),
        ({"intermediate_size": 32}, "in another shape"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_in_a_sentence(tmp_path, change, match):
    folder = written(tmp_path, "vllm")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))

    def start():
        pretrained = Pretrained(str(folder))
        pretrained.load(Drafter(pretrained.config(CONFIG)), WORDS)

    with pytest.raises(InputError, match=match):
        start()


def test_a_folder_without_a_checkpoint(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json"):
        Pretrained(str(tmp_path / "nothing"))
