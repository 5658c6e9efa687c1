"""A whole training on a folder: its results, resuming exactly, and what it says about data it can't use."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from eyas.errors import DataError, InputError
from eyas.run import spec as specs
from eyas.storage.layout import RunLayout
from eyas.storage.objects import open_store
from eyas.trainer.job import train
from support.training_run import make_model, make_run


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def never():
    return False


def silent(*_):
    return None


def records(root, spec):
    folder = root / RunLayout("r").training_steps(specs.training_hash(spec))
    return [record for path in sorted(folder.glob("*.json")) for record in json.loads(path.read_text())]


def comparable(found):
    return [(r["step"], r["epoch"], r["loss"], r["loss_by_step"], r["accuracy_by_step"], r["lr"]) for r in found]


def train_here(root, stop=never, tell=silent):
    return train(open_store(str(root)), "r", stop, tell)


def test_a_training_lowers_the_loss_and_writes_all_that_is_promised(tmp_path, model):
    spec = make_run(tmp_path, model, epochs=8)
    told = []
    assert train_here(tmp_path, tell=lambda *args: told.append(args))
    found = records(tmp_path, spec)
    assert [r["step"] for r in found] == list(range(1, len(found) + 1))
    assert found[-1]["loss"] < 0.9 * found[0]["loss"]
    assert found[-1]["held_out"]["loss"] > 0
    assert told[-1][0] == told[-1][1] == len(found)
    settings_hash = specs.training_hash(spec)
    summary = json.loads((tmp_path / RunLayout("r").training_summary(settings_hash)).read_text())
    assert sum(d["generated"] for d in summary["length_deciles"]) == sum(
        d["supervised"] for d in summary["length_deciles"]
    )
    assert not any(summary["skipped"].values())
    manifest = json.loads((tmp_path / "r/drafter/manifest.json").read_text())
    assert manifest["settings_hash"] == settings_hash
    for folder in ("r/drafter/vllm", "r/drafter/speculators", f"r/training/{settings_hash}/untrained"):
        assert (tmp_path / folder / "config.json").exists()
        assert (tmp_path / folder / "model.safetensors").exists()
    assert len(list((tmp_path / f"r/training/{settings_hash}/checkpoints").glob("*.json"))) <= 2
    before = (tmp_path / "r/drafter/manifest.json").stat().st_mtime_ns
    assert train_here(tmp_path)
    assert (tmp_path / "r/drafter/manifest.json").stat().st_mtime_ns == before


def test_an_interrupted_training_gives_the_same_losses_and_drafter(tmp_path, model):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    spec = make_run(whole, model)
    make_run(parts, model)
    assert train_here(whole)
    calls = iter(range(1000))
    interruptions = 0
    while not train_here(parts, stop=lambda: next(calls) % 2 == 1):
        interruptions += 1
    assert interruptions >= 3
    assert comparable(records(parts, spec)) == comparable(records(whole, spec))
    ours, theirs = (load_file(root / "r/drafter/vllm/model.safetensors") for root in (parts, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_killed_training_goes_on_at_its_last_checkpoint(tmp_path, model):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = {"epochs": 12, "checkpointSeconds": 0.0}
    spec = make_run(whole, model, **settings)
    make_run(killed, model, **settings)
    assert train_here(whole)
    checkpoints = killed / f"r/training/{specs.training_hash(spec)}/checkpoints"
    process = start(killed)
    await_checkpoint(process, checkpoints)
    process.kill()
    process.wait()
    assert not (killed / "r/drafter/manifest.json").exists()
    assert train_here(killed)
    assert comparable(records(killed, spec)) == comparable(records(whole, spec))


def test_sigterm_writes_a_checkpoint_and_exits_with_75(tmp_path, model):
    spec = make_run(tmp_path, model, epochs=2000)
    process = start(tmp_path)
    deadline = time.monotonic() + 60
    untrained = tmp_path / f"r/training/{specs.training_hash(spec)}/untrained/config.json"
    while not untrained.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert list((tmp_path / f"r/training/{specs.training_hash(spec)}/checkpoints").glob("*.json"))


def test_two_processes_train_as_one(tmp_path, model):
    one, two = tmp_path / "one", tmp_path / "two"
    spec = make_run(one, model)
    make_run(two, model)
    assert train_here(one)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "eyas.trainer"]
    subprocess.run([sys.executable, *command], env=environment(two), check=True, timeout=120)
    for ours, theirs in zip(records(two, spec), records(one, spec), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["supervised"] == theirs["supervised"]


def test_a_few_missing_or_broken_states_are_skipped_and_counted(tmp_path, model):
    spec = make_run(tmp_path, model, samples=24)
    states = sorted((tmp_path / "r/hidden_states").iterdir())
    data = bytearray(states[3].read_bytes())
    data[-4:] = b"\x00\x00\xc0\x7f"  # NaN
    states[3].write_bytes(data)
    assert train_here(tmp_path)
    summary = json.loads((tmp_path / RunLayout("r").training_summary(specs.training_hash(spec))).read_text())
    (sample,) = summary["skipped_samples"].get("hidden_states_broken") or ["held out"]
    assert sample in summary["broken"] or sample == "held out"


def test_too_many_missing_states_are_an_error_with_a_sample(tmp_path, model):
    make_run(tmp_path, model)
    for path in sorted((tmp_path / "r/hidden_states").iterdir())[:6]:
        path.unlink()
    with pytest.raises(DataError, match=r"hidden states of \d+ of 12 sequences .* first of sample s\d+"):
        train_here(tmp_path)


def test_too_many_broken_states_are_an_error_with_a_sample(tmp_path, model):
    make_run(tmp_path, model)
    for path in (tmp_path / "r/hidden_states").iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:2048] + bytes(len(data) - 2048))
    with pytest.raises(DataError, match=r"first of sample s\d+"):
        train_here(tmp_path)


def test_other_data_starts_anew(tmp_path, model):
    spec = make_run(tmp_path, model)
    steps = iter(range(100))
    assert not train_here(tmp_path, stop=lambda: next(steps) >= 2)
    path = next(iter(sorted((tmp_path / "r/hidden_states").iterdir())))
    path.unlink()
    store_spec = specs.to_mapping(spec)
    store_spec["thresholds"] = {"givenUpPause": 0.5}
    (tmp_path / "r/spec.json").write_bytes(specs.to_json(specs.build(store_spec)))
    assert train_here(tmp_path)


def test_a_batch_that_the_processes_cannot_share_is_refused(tmp_path, model):
    make_run(tmp_path, model, batchSize=3)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "eyas.trainer"]
    result = subprocess.run(
        [sys.executable, *command], env=environment(tmp_path), capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode != 0
    assert "training.batchSize is 3 for 2 processes" in result.stderr


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no run 'r'"):
        train_here(tmp_path)


def environment(root):
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "EYAS_STORAGE_URI": str(root),
        "EYAS_RUN": "r",
        "EYAS_METRICS_LISTEN": "127.0.0.1:0",
    }


def start(root):
    return subprocess.Popen([sys.executable, "-m", "eyas.trainer"], env=environment(root), stderr=subprocess.DEVNULL)


def await_checkpoint(process, folder):
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.json"))) < 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
