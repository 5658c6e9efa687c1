"""The drafter against the published EAGLE-3 training code: losses, counts, logits and every gradient.

The published code pads and averages over padding; its mask is that of the row, ours that of the target, one position
later. Cases `edge` and `single` train on the padding behind a document, which our rule excludes; they are reproduced
without a switch, by giving that padding as part of the document: K further positions with id 0 and zero states.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eyas.trainer.batch import Document, pack, plan
from eyas.trainer.config import DrafterConfig
from eyas.trainer.loss import chunked_loss, likeliest
from eyas.trainer.model import Drafter, rms_norm

DATA = Path(__file__).parents[2] / "data" / "eagle3"
STEPS, LENGTH, TOLERANCE = 4, 24, 1e-5


@pytest.fixture(scope="module")
def golden():
    tensors = load_file(DATA / "official.safetensors")
    return tensors, json.loads((DATA / "official.json").read_text())


def drafter_of(tensors):
    config = DrafterConfig(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        vocab_size=512, draft_vocab_size=128, layer_ids=(2, 4, 5), max_position_embeddings=64,
    )  # fmt: skip
    drafter = Drafter(config)
    drafter.load_state_dict({name: tensors[f"weights.{name}"] for name in drafter.native()}, strict=False)
    return drafter


def run(tensors, mask, rows, lengths=None):
    """Trains one step on batch rows, whole with their padding, or cut to `lengths`."""
    drafter = drafter_of(tensors)
    embedding = tensors["weights.embed_tokens.weight"]
    head, norm = tensors["inputs.target_lm_head"], tensors["inputs.target_norm_weight"]
    draft_ids = torch.arange(128) + tensors["weights.d2t"]
    draft_of = torch.full((512,), -1)
    draft_of[draft_ids] = torch.arange(128)
    documents = []
    for row in rows:
        ids, inputs = tensors["inputs.input_ids"][row], tensors["inputs.aux_hidden_states"][row]
        last, supervised = tensors["inputs.target_prenorm_hidden"][row], mask[row].bool().roll(1)
        if lengths is None:
            ids = torch.cat([ids, torch.full((STEPS,), 0)])
            inputs, last = (torch.cat([x, torch.zeros(STEPS, x.shape[1])]) for x in (inputs, last))
            supervised = torch.cat([mask[row].new_zeros(1), mask[row], mask[row].new_zeros(STEPS - 1)]).bool()
        else:
            ids, inputs, last, supervised = (x[: lengths[row]] for x in (ids, inputs, last, supervised))
        documents.append(Document(str(row), ids, inputs, last, supervised))

    def argmax(document):
        return likeliest(rms_norm(document.last[document.supervised], norm, 1e-5), head, chunk_elements=2048)

    batch = pack(documents, argmax, draft_of, device=torch.device("cpu"), dtype=torch.float32)
    steps = plan(batch, STEPS)
    outputs = drafter(batch, steps, embedding)
    weights = 0.8 ** torch.arange(STEPS) / (len(rows) * LENGTH)
    losses = chunked_loss(
        torch.stack(outputs.normed_KRH), drafter.lm_head.weight, target_NH=rms_norm(batch.last_NH, norm, 1e-5),
        target_head_WH=head[draft_ids], labels_N=batch.labels_N, plan=steps, weights_K=weights,
    )  # fmt: skip
    losses.total.backward()
    return drafter, batch, steps, outputs, losses


CASES = [
    ("main", "inputs.loss_mask", (0, 1), None),
    ("main", "inputs.loss_mask", (0, 1), (24, 17)),
    ("edge", "inputs.loss_mask_edge", (0, 1), None),
    ("single", "inputs.loss_mask_single", (0,), None),
]


@pytest.mark.parametrize(("case", "mask", "rows", "lengths"), CASES, ids=["main", "main-cut", "edge", "single"])
def test_losses_counts_and_gradients(golden, case, mask, rows, lengths):
    tensors, numbers = golden
    expected = numbers["cases"][case]
    drafter, _, steps, _, losses = run(tensors, tensors[mask], rows, lengths)
    assert losses.total.item() == pytest.approx(expected["total_loss"], abs=TOLERANCE)
    for k, step in enumerate(expected["steps"]):
        assert losses.sums_K[k].item() / step["denominator"] == pytest.approx(step["loss"], abs=TOLERANCE)
        assert steps.counts_K[k] == step["n_position_mask"]
        assert steps.asked_K[k] == step["n_loss_mask"]
        assert losses.right_KR[k].sum() == step["acc_correct"]
    for name, parameter in drafter.named_parameters():
        assert parameter.grad.norm().item() == pytest.approx(expected["grad_norms"][name], abs=TOLERANCE), name
        if case == "main":
            torch.testing.assert_close(parameter.grad, tensors[f"grads.main.{name}"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("lengths", [None, (24, 17)], ids=["padded", "cut"])
def test_hidden_states_and_logits_of_every_trained_row(golden, lengths):
    tensors, _ = golden
    drafter, batch, steps, outputs, _ = run(tensors, tensors["inputs.loss_mask"], (0, 1), lengths)
    compared = 0
    for k in range(STEPS):
        for index, position in enumerate(steps.rows_R.tolist()):
            row = int(position >= batch.starts[1])
            p = position - batch.starts[row]
            if p + 1 + k >= (24, 17)[row]:
                continue
            logits = drafter.lm_head(outputs.normed_KRH[k][index])
            torch.testing.assert_close(logits, tensors["outputs.draft_logits"][k, row, p], atol=TOLERANCE, rtol=0)
            torch.testing.assert_close(
                outputs.hidden_KRH[k][index], tensors["outputs.layer_hidden"][k, row, p], atol=TOLERANCE, rtol=0
            )
            compared += 1
    assert compared >= 100


def test_position_masks(golden):
    tensors, _ = golden
    for mask, expected in (("loss_mask", "position_mask"), ("loss_mask_edge", "position_mask_edge")):
        _, batch, steps, _, _ = run(tensors, tensors[f"inputs.{mask}"], (0, 1))
        made = torch.zeros(STEPS, 2, LENGTH, dtype=torch.int64)
        for k in range(STEPS):
            for index in steps.row_of_KQ[k][steps.row_of_KQ[k] >= 0].tolist():
                position = int(steps.rows_R[index])
                row = int(position >= batch.starts[1])
                made[k, row, position - batch.starts[row]] = 1
        assert torch.equal(made, tensors[f"outputs.{expected}"])


def test_last_position_is_never_trained_on_padding(golden):
    """With documents cut to their lengths, the mask on the last token (case edge) changes nothing."""
    tensors, _ = golden
    plain = run(tensors, tensors["inputs.loss_mask"], (0, 1), (24, 17))
    edge = run(tensors, tensors["inputs.loss_mask_edge"], (0, 1), (24, 17))
    assert torch.equal(plain[4].sums_K, edge[4].sums_K)
