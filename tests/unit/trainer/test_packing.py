"""Packing, chunking and blocks change nothing: packed documents train exactly as each alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.trainer import attention, loss
from eyas.trainer.attention import Segment, step_attention
from eyas.trainer.batch import Document, pack, plan
from eyas.trainer.config import DrafterConfig
from eyas.trainer.loss import chunked_loss, likeliest
from eyas.trainer.model import Drafter

CPU = torch.device("cpu")
V, W, H = 32, 16, 16


def drafter(**changes):
    torch.manual_seed(0)
    return Drafter(
        DrafterConfig(
            hidden_size=H, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
            vocab_size=V, draft_vocab_size=W, layer_ids=(1, 2, 3), max_position_embeddings=64, **changes,
        )
    )  # fmt: skip


def document(generator, length, name="d"):
    def random(*shape):
        return torch.randn(*shape, generator=generator)

    ids = torch.randint(0, V, (length,), generator=generator)
    mask = torch.rand(length, generator=generator) < 0.6
    return Document(name, ids, random(length, 3 * H), random(length, H), mask)


def train(model, documents, steps=3):
    draft_of = torch.where(torch.arange(V) < W, torch.arange(V), -1)
    generator = torch.Generator().manual_seed(5)
    embedding, head = torch.randn(V, H, generator=generator), torch.randn(V, H, generator=generator)

    def argmax(one):
        return likeliest(one.last[one.supervised], head)

    batch = pack(documents, argmax, draft_of, device=CPU, dtype=torch.float32)
    planned = plan(batch, steps)
    normed = torch.stack(model(batch, planned, embedding).normed_KRH)
    result = chunked_loss(
        normed, model.lm_head.weight, target_NH=batch.last_NH, target_head_WH=head[:W], labels_N=batch.labels_N,
        plan=planned, weights_K=torch.tensor([1.0, 0.8, 0.64])[:steps],
    )  # fmt: skip
    model.zero_grad()
    result.total.backward()
    return result, planned, {name: p.grad.clone() for name, p in model.named_parameters()}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(0, 10_000))
def test_packed_documents_train_as_each_alone(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    documents = [document(generator, length) for length in lengths]
    model = drafter()
    packed, planned, gradients = train(model, documents)
    alone = [train(model, [one]) for one in documents]
    torch.testing.assert_close(packed.sums_K, sum(a[0].sums_K for a in alone))
    assert torch.equal(planned.counts_K, sum(a[1].counts_K for a in alone))
    assert torch.equal(packed.right_KR.sum(1), sum(a[0].right_KR.sum(1) for a in alone))
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, sum(a[2][name] for a in alone), atol=1e-5, rtol=1e-4)


def test_chunks_and_blocks_change_nothing(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    documents = [document(generator, 23), document(generator, 9)]
    whole = train(drafter(), documents)
    monkeypatch.setattr(attention, "BLOCK_ELEMENTS", 100)
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", 100)
    parts = train(drafter(), documents)
    torch.testing.assert_close(whole[0].sums_K, parts[0].sums_K)
    for name in whole[2]:
        torch.testing.assert_close(whole[2][name], parts[2][name], atol=1e-6, rtol=1e-5)


def test_padding_of_the_vocabulary_and_unsupervised_text_do_not_count():
    generator = torch.Generator().manual_seed(2)
    one = document(generator, 12)
    quiet = Document("q", one.ids, one.inputs, one.last, torch.zeros(12, dtype=torch.bool))
    alone, both = train(drafter(), [one]), train(drafter(), [one, quiet])
    torch.testing.assert_close(alone[0].sums_K, both[0].sums_K)
    assert torch.equal(alone[1].counts_K, both[1].counts_K)


@pytest.mark.parametrize("changes", [{"fc_norm": True}, {"norm_output": True}], ids=["fc_norm", "norm_output"])
def test_options_change_the_function_and_get_gradients(changes):
    generator = torch.Generator().manual_seed(3)
    documents = [document(generator, 16)]
    base, other = train(drafter(), documents), train(drafter(**changes), documents)
    assert not torch.allclose(base[0].sums_K, other[0].sums_K)
    assert all(gradient.abs().sum() > 0 for gradient in other[2].values())


def test_attention_gradients_are_exact():
    """Against numerical derivatives in float64, with two documents, grouped heads and two own keys."""
    torch.manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    rows = torch.tensor([1, 2, 4, 5, 6])
    segments = [Segment(slice(0, 2), slice(0, 3)), Segment(slice(2, 5), slice(3, 7))]
    q, k, v, own_k, own_v = random(5, 4, 2), random(7, 2, 2), random(7, 2, 2), random(5, 2, 2, 2), random(5, 2, 2, 2)

    def dense(q, k, v, own_k, own_v):
        out = []
        for index, row in enumerate(rows.tolist()):
            first = 0 if row < 3 else 3
            for head in range(4):
                keys = torch.cat([k[first : row + 1, head // 2], own_k[index, head // 2]])
                values = torch.cat([v[first : row + 1, head // 2], own_v[index, head // 2]])
                out.append((keys @ q[index, head] * 2**-0.5).softmax(0) @ values)
        return torch.stack(out).view(5, 4, 2)

    inputs = [x.requires_grad_() for x in (q, k, v, own_k, own_v)]
    gradient = random(5, 4, 2)
    expected = torch.autograd.grad(dense(*inputs), inputs, gradient)
    result = step_attention(*inputs[:3], own_k_RGSD=own_k, own_v_RGSD=own_v, positions_R=rows, segments=segments)
    torch.testing.assert_close(result, dense(*inputs), atol=1e-6, rtol=1e-5)
    for ours, theirs in zip(torch.autograd.grad(result, inputs, gradient), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_standardised_inputs_are_the_same_function_and_export():
    generator = torch.Generator().manual_seed(4)
    documents = [document(generator, 16)]
    plain, conditioned = drafter(), drafter()
    conditioned.standardise(torch.rand(3 * H, generator=generator) * 100 + 0.1)
    torch.testing.assert_close(train(plain, documents)[0].sums_K, train(conditioned, documents)[0].sums_K)
    torch.testing.assert_close(plain.native(), conditioned.native())
    assert not torch.allclose(plain.fc.weight, conditioned.fc.weight)
