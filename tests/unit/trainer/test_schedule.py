"""The learning rate rises, falls to zero, and ends with the steps or with the time."""

import pytest

from eyas.trainer.schedule import Schedule


def test_warm_up_then_cosine_to_zero():
    schedule = Schedule(peak=1.0, warmup_ratio=0.1, total_steps=100)
    rates = [schedule.rate(step, 0.0) for step in range(100)]
    assert rates[0] == pytest.approx(1 / 11)
    assert max(rates) == pytest.approx(rates[10], abs=0.03)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.001


def test_time_ends_a_training_before_its_steps():
    schedule = Schedule(peak=1.0, warmup_ratio=0.0, total_steps=1000, max_seconds=10.0)
    assert schedule.rate(2, 5.0) == pytest.approx(0.5)
    assert schedule.rate(2, 9.9) < 0.001
    assert schedule.done(2, 10.0)
    assert not schedule.done(2, 9.0)
    assert schedule.done(1000, 0.0)


def test_without_a_limit_time_counts_for_nothing():
    schedule = Schedule(peak=1.0, warmup_ratio=0.0, total_steps=10)
    assert schedule.rate(5, 1e9) == schedule.rate(5, 0.0)
    assert not schedule.done(5, 1e9)
