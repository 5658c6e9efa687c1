"""Drafters measured in a real vLLM."""

import asyncio
import json
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eyas.run import spec as specs
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore, open_store
from eyas.storage.tables import GENERATIONS
from eyas.vllm import launch

RUN = "measured"
PROMPTS = 4
MAX_TOKENS = 40


def run_spec(model: Path) -> specs.pb.RunSpec:
    return specs.build(
        {
            "name": RUN,
            "model": {"uri": str(model), "servedName": "smollm2"},
            "evaluation": {
                "maxPrompts": PROMPTS,
                "maxTokens": MAX_TOKENS,
                "concurrency": 2,
                "drafters": ["ngram", "untrained", "none"],
            },
            "vllm": {"dtype": "float16", "maxModelLen": 1024, "startSeconds": 300},
        }
    )


def write_drafter(folder: Path, model: Path) -> None:
    """A drafter with random weights, in vLLM's own format."""
    target = json.loads((model / "config.json").read_text())
    hidden, heads, keys = target["hidden_size"], target["num_attention_heads"], target["num_key_value_heads"]
    size, inner, drafted = hidden // heads, 256, 1000
    layers = [2, 15, 27]
    config = {
        **{name: target[name] for name in ("hidden_size", "vocab_size", "rms_norm_eps", "max_position_embeddings")},
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": size,
        "intermediate_size": inner,
        "draft_vocab_size": drafted,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "eagle_aux_hidden_state_layer_ids": layers,
        "num_aux_hidden_states": 3,
        "torch_dtype": "float16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers, "use_aux_hidden_state": True},
    }
    torch.manual_seed(0)
    shapes = {
        "fc": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj": (heads * size, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys * size, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys * size, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, heads * size),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
        "lm_head": (drafted, hidden),
    }
    tensors = {f"{name}.weight": (torch.randn(shape) * 0.02).half() for name, shape in shapes.items()}
    for name in ("norm", "midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm"):
        tensors[f"{name}.weight"] = torch.ones(hidden).half()
    tensors["d2t"] = torch.zeros(drafted, dtype=torch.int64)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")


async def write_run(root: Path, model: Path) -> ObjectStore:
    """A run that was generated and trained: prompts of different length, the held-out ones last."""
    store, layout, spec = open_store(str(root)), RunLayout(RUN), run_spec(model)
    await store.create(layout.spec, specs.to_json(spec))
    now = datetime(2026, 3, 14, tzinfo=UTC)
    # "<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n" of SmolLM2's template, with words of ten thousands.
    prompts = [[1, 4093, 198, *range(3000 + 7 * at, 3020 + 8 * at), 2, 198, 1, 520, 9531, 198] for at in range(12)]
    rows = [
        {
            "sample_id": f"{at:064x}",
            "turn": 0,
            "position": at,
            "split": "train" if at < 4 else "holdout",
            "source": "x",
            "messages": [],
            "prompt_ids": prompt,
            "ids": [2],
            "finish_reason": "stop",
            "stop_reason": "",
            "reasoning": "",
            "content": "",
            "tool_calls": "",
            "attempts": 1,
            "interruptions": [],
            "lost_tokens": 0,
            "endpoint": "",
            "model": "",
            "started_at": now,
            "finished_at": now,
            "first_token_seconds": 0.1,
            "seconds": 1.0,
        }
        for at, prompt in enumerate(prompts)
    ]
    await store.create(f"{layout.generations}/000000.parquet", GENERATIONS.encode(rows))
    write_drafter(root / layout.training(specs.training_hash(spec)) / "untrained", model)
    return store


async def start(root: Path, **settings: str) -> asyncio.subprocess.Process:
    own = {"EYAS_STORAGE_URI": str(root), "EYAS_RUN": RUN, **settings}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "eyas.evaluator"), env={**os.environ, **own}, stderr=asyncio.subprocess.PIPE
    )


@pytest.mark.vllm
@pytest.mark.timeout(900)
async def test_drafters_are_measured_and_compared(model_folder: Path, vllm_python: Path, tmp_path: Path):
    store = await write_run(tmp_path, model_folder)
    process = await start(tmp_path, EYAS_VLLM_PYTHON=str(vllm_python))
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()

    layout, spec = RunLayout(RUN), run_spec(model_folder)
    result = json.loads(await store.get(layout.evaluation_result))
    assert result["settings_hash"] == specs.evaluation_hash(spec)
    assert (result["num_speculative_tokens"], result["prompts"]) == (3, PROMPTS)
    assert set(result["drafters"]) == {"none", "ngram", "untrained"}
    for name, found in result["drafters"].items():
        answers = json.loads(await store.get(layout.measurement(name)))["answers"]
        assert len(answers) == PROMPTS
        assert found["tokens"] == sum(map(len, answers)) <= PROMPTS * MAX_TOKENS
        assert all(answers)
        assert found["tokens_per_second"] > 0
        assert 0 <= found["repetition_share"] <= 1
        if name == "none":
            assert (found["drafts"], found["acceptance_length"]) == (0, 1.0)
            assert "greedy_agreement" not in found
        else:
            assert found["draft_tokens"] <= 3 * found["drafts"]
            assert found["acceptance_length"] == 1 + found["accepted_tokens"] / found["drafts"]
            assert len(found["acceptance_by_position"]) == 3
            assert found["greedy_agreement"] == 1 - len(found["differences"]) / PROMPTS
            assert all(difference["near_tie"] for difference in found["differences"]), found["differences"]
    # Each step makes at least one token, so a random drafter cannot have fewer drafts than it has failures.
    assert result["drafters"]["untrained"]["acceptance_length"] < 1.2
    assert b"<table" in await store.get(layout.report)

    # What is stored is not measured again: no vLLM is needed for it.
    await store.delete(layout.evaluation_result)
    process = await start(tmp_path, EYAS_VLLM_PYTHON="/nowhere/python")
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert json.loads(await store.get(layout.evaluation_result)) == result


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_a_server_is_measured_as_it_is(model_folder: Path, vllm_server: launch.VllmServer, tmp_path: Path):
    store = await write_run(tmp_path, model_folder)
    process = await start(tmp_path, EYAS_ENDPOINT=vllm_server.url)
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    result = json.loads(await store.get(RunLayout(RUN).evaluation_result))
    assert set(result["drafters"]) == {"endpoint"}
    assert result["drafters"]["endpoint"]["acceptance_length"] == 1.0
    assert result["drafters"]["endpoint"]["tokens"] > PROMPTS


async def test_an_interrupted_evaluation_says_so_and_leaves_no_server(
    model_folder: Path, vllm_python: Path, tmp_path: Path
):
    await write_run(tmp_path, model_folder)
    process = await start(tmp_path, EYAS_VLLM_PYTHON=str(vllm_python))
    assert process.stderr is not None
    await process.stderr.readuntil(b"starting a server")
    async with asyncio.timeout(30):
        while not (guards := [child for child in children(process.pid) if "eyas.vllm.guard" in command_line(child)]):  # noqa: ASYNC110 - no event is raised here
            await asyncio.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().splitlines()[-1].startswith("error: the evaluation was interrupted")
    assert not any(map(command_line, guards))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"EYAS_RUN": "absent"}, "there is no run 'absent'"),
        ({"EYAS_VLLM_PYTHON": "/nowhere/python"}, "there is no vLLM at /nowhere/python"),
        ({"EYAS_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached"),
    ],
)
async def test_what_is_missing_is_said(model_folder: Path, tmp_path: Path, settings: dict[str, str], sentence: str):
    await write_run(tmp_path, model_folder)
    process = await start(tmp_path, **settings)
    _, said = await process.communicate()
    assert process.returncode == 1
    last = said.decode().splitlines()[-1]
    assert last.startswith("error: ")
    assert sentence in last
    assert "Traceback" not in said.decode()


def children(pid: int) -> list[int]:
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except FileNotFoundError:
        return ""
