"""A finished extraction in a folder: a tiny random Llama, answers that follow a rule, and their true hidden states."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eyas.run import spec as specs
from eyas.storage import hidden_states, tables
from eyas.storage.layout import RunLayout
from eyas.storage.log import Log
from eyas.storage.objects import ObjectStore, open_store

VOCABULARY, LAYERS = 64, 6
LAYER_IDS = [1, 3, 4, 6]


def make_model(folder: Path, hidden: int = 32, head_dim: int = 8) -> Path:
    """A Llama of six layers, whose weights are read as any other's."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, head_dim=head_dim, max_position_embeddings=512,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.lm_head.weight.data *= 20  # else it predicts all ids alike, and there is nothing to learn
    model.save_pretrained(folder)
    return folder


def make_run(
    root: Path, model: Path, *, samples: int = 12, held_out: int = 3, greedy: Sequence[list[int]] = (), **training
):
    """Writes spec, generations and hidden states of run `r`; returns the spec.

    Answers are random; those of samples for which `greedy` has a prompt are what the model likes best.
    """
    settings = {
        "dtype": "float32", "tttSteps": 3, "totalSeqLen": 64, "epochs": 3, "lr": 5e-3, "draftVocabSize": 40,
        "checkpointSeconds": 1e9, "batchSize": 2, **training,
    }  # fmt: skip
    spec = specs.build(
        {
            "name": "r",
            "model": {
                "uri": str(model),
                "fingerprint": {"context": 512, "vocabSize": VOCABULARY, "tokenizerHash": "t", "eosTokenIds": [1]},
            },
            "dataset": {"samples": samples + held_out, "hash": "d"},
            "hiddenStates": {"layerIds": LAYER_IDS},
            "training": settings,
        }
    )
    store = open_store(str(root))
    network = LlamaForCausalLM.from_pretrained(model).eval()
    rows = _rows(samples, held_out)
    for row, prompt in zip(rows, greedy, strict=False):
        row["prompt_ids"], row["ids"] = prompt, continued(network, prompt, 48)
    layout = RunLayout("r")
    store.put_blocking(layout.spec, specs.to_json(spec))
    asyncio.run(Log(store, layout.generations, ".parquet", tables.GENERATIONS).append(rows))
    for row in rows:
        put_states(store, network, row["prompt_ids"] + row["ids"])
    return spec


@torch.no_grad()
def continued(network: LlamaForCausalLM, prompt: list[int], length: int) -> list[int]:
    """The model's greedy answer, past its end if need be."""
    ids = list(prompt)
    for _ in range(length):
        ids.append(int(network(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def put_states(store: ObjectStore, network: LlamaForCausalLM, ids: list[int]) -> str:
    """Stores the hidden states of one sequence; returns the key."""
    values = states_of(network, ids)
    key = RunLayout("r").hidden_states(hidden_states.key(ids))
    prefix = hidden_states.prefix(ids, LAYER_IDS, values.shape[-1], "float32")
    store.put_blocking(key, prefix + values.contiguous().numpy().tobytes())
    return key


@torch.no_grad()
def states_of(network: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    """Hidden states [T, L, H] of the layers of a run, the last one before the final norm."""
    last = {}
    hook = network.model.norm.register_forward_pre_hook(lambda _, given: last.update(x=given[0]))
    states = network(torch.tensor([ids]), output_hidden_states=True).hidden_states
    hook.remove()
    return torch.stack([states[layer][0] for layer in LAYER_IDS[:-1]] + [last["x"][0]], 1).float()


def _rows(samples: int, held_out: int) -> list[tables.GenerationRow]:
    generator = torch.Generator().manual_seed(2)
    rows = []
    for position in range(samples + held_out):
        length = int(torch.randint(8, 40, (1,), generator=generator))
        ids = torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()
        now = datetime.now(UTC)
        row = tables.GenerationRow(
            sample_id=f"s{position}", turn=0, position=position, split="train" if position < samples else "holdout",
            source="test", messages=[{"role": "user", "content": "?"}], prompt_ids=ids[:4], ids=ids[4:],
            finish_reason="stop", stop_reason="", reasoning="", content="", tool_calls="", attempts=1,
            interruptions=[], lost_tokens=0, endpoint="", model="m", started_at=now, finished_at=now,
            first_token_seconds=0.1, seconds=1.0,
        )  # fmt: skip
        rows.append(row)
    return rows
