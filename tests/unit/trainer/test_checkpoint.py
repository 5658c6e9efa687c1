"""Checkpoints: whole or not there, the last two kept, and of this data only."""

import pytest
import torch

from eyas.errors import ReplacedError
from eyas.storage.objects import open_store
from eyas.trainer import checkpoint
from eyas.trainer.checkpoint import Checkpoints, Place


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path))


def tensors(value):
    return {"drafter.a": torch.full((4,), float(value)), "d2t": torch.arange(3)}


def test_the_newest_is_loaded_and_two_are_kept(store, tmp_path):
    checkpoints = Checkpoints(store, "t")
    for step in range(4):
        checkpoints.save(Place(step=step, data_key="k"), tensors(step))
    place, found = Checkpoints(store, "t").load("k")
    assert place.step == 3
    assert torch.equal(found["drafter.a"], torch.full((4,), 3.0))
    assert sorted(path.name for path in (tmp_path / "t/checkpoints").glob("*.json")) == ["000002.json", "000003.json"]
    assert len(list((tmp_path / "t/checkpoints").glob("*/*.safetensors"))) == 2


def test_parts_are_put_together(store, monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoint, "_OBJECT_BYTES", 20)
    checkpoints = Checkpoints(store, "t")
    checkpoints.save(Place(data_key="k"), tensors(1))
    assert len(list((tmp_path / "t/checkpoints/000000").iterdir())) == 2
    assert checkpoints.load("k")[1].keys() == {"drafter.a", "d2t"}


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "no manifest", "manifest cut"])
def test_one_that_is_not_whole_does_not_exist(store, tmp_path, damage):
    checkpoints = Checkpoints(store, "t")
    for step in (1, 2):
        checkpoints.save(Place(step=step, data_key="k"), tensors(step))
    data, manifest = tmp_path / "t/checkpoints/000001/0000.safetensors", tmp_path / "t/checkpoints/000001.json"
    if damage == "cut":
        data.write_bytes(data.read_bytes()[:-4])
    elif damage == "changed":
        data.write_bytes(data.read_bytes()[:-1] + b"x")
    elif damage == "missing":
        data.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:40])
    assert Checkpoints(store, "t").load("k")[0].step == 1
    checkpoints.save(Place(step=3, data_key="k"), tensors(3))  # a damaged number is not written again
    assert Checkpoints(store, "t").load("k")[0].step == 3


def test_other_data_is_another_training(store):
    checkpoints = Checkpoints(store, "t")
    checkpoints.save(Place(step=1, data_key="k"), tensors(1))
    assert checkpoints.load("other") is None
    assert Checkpoints(store, "empty").load("k") is None


def test_a_second_writer_is_noticed(store, monkeypatch):
    ours, theirs = Checkpoints(store, "t"), Checkpoints(store, "t")
    monkeypatch.setattr(ours, "_numbers", set)
    theirs.save(Place(step=1, data_key="k"), tensors(1))
    with pytest.raises(ReplacedError):
        ours.save(Place(step=1, data_key="k"), tensors(2))


def test_weights_optimiser_and_random_state_come_back():
    def made():
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.randn(5, 2)).sum().backward()
        optimizer.step()

    model, optimizer = made()
    step(model, optimizer)
    saved = {name: tensor.clone() for name, tensor in checkpoint.gather(model, optimizer, torch.arange(2)).items()}
    step(model, optimizer)
    expected = [p.clone() for p in model.parameters()]
    other, other_optimizer = made()
    checkpoint.restore(saved, other, other_optimizer)
    step(other, other_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), expected, strict=True))
