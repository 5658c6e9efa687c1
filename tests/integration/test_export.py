"""A trained drafter in a real vLLM: both formats load, and draft what the trainer's own model drafts."""

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from eyas.storage.objects import open_store
from eyas.trainer.batch import Document, pack, plan
from eyas.trainer.config import for_model
from eyas.trainer.job import train
from eyas.trainer.model import Drafter
from eyas.trainer.pretrained import Pretrained
from eyas.trainer.target import Weights, read_target
from eyas.trainer.vocabulary import from_d2t
from support.training_run import continued, make_model, make_run, states_of

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm/bin/python"
DRAFTS, LENGTH = 3, 48
PROMPTS = [[7, 9, 11, 13], [40, 41, 42], [3, 50, 33, 21, 60], [20, 30], [61, 12, 12, 5], [8, 8, 8]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    model = make_model(folder / "model", hidden=128, head_dim=32)
    spec = make_run(
        folder,
        model,
        greedy=PROMPTS,
        samples=len(PROMPTS),
        held_out=0,
        epochs=100,
        batchSize=1,
        totalSeqLen=512,
        lr=3e-3,
    )
    assert train(open_store(str(folder)), "r", lambda: False, lambda *_: None)
    network = LlamaForCausalLM.from_pretrained(model).eval()
    return folder, model, spec, network, [continued(network, prompt, LENGTH) for prompt in PROMPTS]


def simulated(folder, model, spec, network, answers):
    """Drafts and accepted drafts by position, when greedy decoding walks over the answers with this drafter."""
    weights = Weights(str(model))
    target = read_target(weights, torch.device("cpu"))
    native = folder / "r/drafter/vllm"
    pretrained = Pretrained(str(native))
    words = from_d2t(load_file(native / "model.safetensors")["d2t"], 64)
    fresh = for_model(weights.config, spec.training, (1, 3, 4), len(words.ids_W))
    drafter = Drafter(pretrained.config(fresh))
    pretrained.load(drafter, words)
    drafts, accepted = 0, [0] * DRAFTS
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = prompt + answer
        states = states_of(network, ids)
        mask = torch.ones(len(ids), dtype=torch.bool)
        document = Document("d", torch.tensor(ids), states[:, :3].flatten(1), states[:, 3], mask)
        every = torch.zeros(64, dtype=torch.int64)  # every target counts, so every row takes part
        batch = pack([document], lambda d: d.ids, every, device=torch.device("cpu"), dtype=torch.float32)
        planned = plan(batch, DRAFTS)
        with torch.no_grad():
            outputs = drafter(batch, planned, target.embedding_VH)
            guesses = torch.stack([words.ids_W[drafter.lm_head(x).argmax(-1)] for x in outputs.normed_KRH])
        row = len(prompt) - 1
        while row + 2 < len(ids):
            right = 0
            while right < DRAFTS and row + 2 + right < len(ids) and guesses[right, row] == ids[row + 2 + right]:
                accepted[right] += 1
                right += 1
            drafts += 1
            row += 1 + right
    return drafts, accepted


@contextmanager
def serving(log, *arguments):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", "m", "--skip-tokenizer-init", "--enforce-eager", "--dtype", "float32"]
    command += ["--max-model-len", "256", *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                alive = process.poll() is None and time.monotonic() < deadline
                assert alive, f"vLLM did not start:\n{log.read_text()[-5000:]}"
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def complete(url, prompt):
    body = {"model": "m", "prompt": prompt, "max_tokens": LENGTH, "temperature": 0, "ignore_eos": True}
    body |= {"return_token_ids": True, "detokenize": False}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


def counted(url):
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    drafts = sum(float(x) for x in re.findall(r"^vllm:spec_decode_num_drafts_total\{.*\} (\S+)$", text, re.MULTILINE))
    per_position = re.findall(
        r'^vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*position="(\d)".*\} (\S+)$', text, re.MULTILINE
    )
    return drafts, [float(value) for _, value in sorted(per_position)]


@pytest.mark.vllm
@pytest.mark.parametrize("form", ["vllm", "speculators"])
def test_vllm_drafts_as_the_trainer_does(trained, form):
    folder, model, _, _, answers = trained
    drafts, accepted = simulated(*trained)
    assert sum(accepted) > 0.3 * drafts, "the drafter must have learnt something, else this shows nothing"
    drafter = str(folder / "r/drafter" / form)
    if form == "vllm":
        speculative = {"method": "eagle3", "model": drafter, "num_speculative_tokens": DRAFTS}
        arguments = ["--model", str(model), "--speculative-config", json.dumps(speculative)]
    else:
        arguments = ["--model", drafter]  # names the model itself
    with serving(folder / f"{form}.log", *arguments) as url:
        assert [complete(url, prompt) for prompt in PROMPTS] == answers
        found, by_position = counted(url)
    # The ends of the answers differ: vLLM drafts on past the last token.
    assert found == pytest.approx(drafts, abs=2 * len(PROMPTS))
    assert by_position == pytest.approx(accepted, abs=2 * len(PROMPTS))
