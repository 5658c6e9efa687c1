"""The same seed draws the same faults, in whatever order requests come."""

import pytest

from eyas.simulator.faults import FaultScript, Kind, Rule, from_header

RULES = (Rule(kind=Kind.CUT, share=0.2, after=5), Rule(kind=Kind.HANG, share=0.1))


def test_draws_do_not_depend_on_the_order_of_prompts() -> None:
    one, other = FaultScript(RULES, seed=1), FaultScript(RULES, seed=1)
    forward = {prompt: one.draw(prompt) for prompt in range(500)}
    backward = {prompt: other.draw(prompt) for prompt in reversed(range(500))}
    assert forward == backward
    kinds = [fault.kind for fault in forward.values() if fault is not None]
    assert 60 < kinds.count(Kind.CUT) < 140
    assert 25 < kinds.count(Kind.HANG) < 75


def test_a_repeated_prompt_draws_anew_and_another_seed_otherwise() -> None:
    script = FaultScript(RULES, seed=1)
    assert len({script.draw(7) for _ in range(50)}) > 1
    drawn = [[FaultScript(RULES, seed).draw(prompt) for prompt in range(100)] for seed in (1, 2)]
    assert drawn[0] != drawn[1]


def test_without_rules_there_are_no_faults() -> None:
    assert FaultScript((), seed=1).draw(1) is None


def test_headers() -> None:
    assert from_header("cut").after == 0
    fault = from_header("error:7:500")
    assert (fault.kind, fault.after, fault.status) == (Kind.ERROR, 7, 500)
    with pytest.raises(ValueError, match="nonsense"):
        from_header("nonsense")
