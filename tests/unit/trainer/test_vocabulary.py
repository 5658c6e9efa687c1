"""The map between vocabularies: most frequent ids, padded, and never of other data."""

import numpy as np
import torch

from eyas.trainer.vocabulary import choose, count, data_key, from_d2t


def test_most_frequent_ids_ascending_with_offsets():
    counts = count([np.array([7, 7, 7, 3, 3, 9], dtype=np.int32), np.array([9, 9, 1], dtype=np.int32)], 12)
    vocabulary = choose(counts, 3)
    assert vocabulary.ids_W.tolist() == [3, 7, 9]
    assert vocabulary.d2t.tolist() == [3, 6, 7]
    assert vocabulary.t2d.nonzero()[:, 0].tolist() == [3, 7, 9]
    assert vocabulary.draft_of[7] == 1
    assert vocabulary.draft_of[8] == -1
    assert torch.equal(from_d2t(vocabulary.d2t, 12).ids_W, vocabulary.ids_W)


def test_fewer_seen_than_asked_for_is_padded_with_low_ids():
    vocabulary = choose(count([np.array([9], dtype=np.int32)], 12), 4)
    assert vocabulary.ids_W.tolist() == [0, 1, 2, 9]
    assert len(set(vocabulary.ids_W.tolist())) == 4


def test_zero_or_too_many_take_all():
    counts = count([], 5)
    assert choose(counts, 0).whole
    assert choose(counts, 99).ids_W.tolist() == [0, 1, 2, 3, 4]
    assert choose(counts, 5).d2t.tolist() == [0] * 5


def test_the_key_changes_with_data_and_tokenizer_not_with_order():
    assert data_key(["a", "b"], "t") == data_key(["b", "a"], "t")
    assert len({data_key(["a", "b"], "t"), data_key(["a"], "t"), data_key(["a", "b"], "u")}) == 3
