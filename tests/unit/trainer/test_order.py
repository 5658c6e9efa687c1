"""Windows lose no target, rows hold every window once, and the order is the seed's."""

from hypothesis import given
from hypothesis import strategies as st

from eyas.trainer.order import epoch_rows, fill, windows

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=20)


@given(LENGTHS, st.integers(8, 64))
def test_every_target_is_in_exactly_one_window(lengths, row):
    found = [set() for _ in lengths]
    for window in windows(lengths, row):
        assert 0 < window.stop - window.start <= row
        assert window.fresh == 0 or window.fresh - window.start >= 2  # rows before the first target give it context
        fresh = set(range(max(window.start, window.fresh), window.stop))
        assert not fresh & found[window.index]
        found[window.index] |= fresh
    assert [len(positions) for positions in found] == lengths


@given(LENGTHS, st.integers(0, 5), st.integers(0, 5))
def test_an_epoch_has_every_window_once_in_rows_that_are_not_too_long(sizes, seed, epoch):
    rows = epoch_rows(sizes, 300, seed, epoch)
    assert sorted(index for row in rows for index in row) == list(range(len(sizes)))
    assert all(sum(sizes[index] for index in row) <= 300 for row in rows)
    assert rows == epoch_rows(sizes, 300, seed, epoch)


def test_epochs_and_seeds_differ():
    sizes = [1] * 50
    orders = {str(epoch_rows(sizes, 10, seed, epoch)) for seed in range(2) for epoch in range(2)}
    assert len(orders) == 4


def test_a_row_is_closed_when_the_next_does_not_fit():
    assert fill([3, 3, 3, 1], [0, 1, 2, 3], 6) == [[0, 1], [2, 3]]
