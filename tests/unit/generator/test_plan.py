"""What an attempt does next follows from what is held."""

from typing import Any

import pytest

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.generator.core.held import Held
from eyas.generator.core.plan import Chat, Complete, Extract, NoRoom, Parse, Render, plan
from eyas.run.v1 import run_pb2

PROMPT = [1, 2, 3]


def held(prompt: list[int], ids: list[int], stage: int = run_pb2.STAGE_GENERATE, **fields: Any) -> Held:
    values = {"max_tokens": 10, "context": 100, "protocol": run_pb2.PROTOCOL_TOKENS} | fields
    made = Held(
        pb.Assign(
            item=pb.Item(run="r", stage=stage),
            prompt_length=len(prompt),
            length=len(ids),
            ids=prompt + ids,
            **values,
        )
    )
    assert made.assemble()
    return made


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (held([], []), Render()),
        (held(PROMPT, []), Complete(PROMPT, 10)),
        (held(PROMPT, [7, 8]), Complete([1, 2, 3, 7, 8], 8)),
        (held(PROMPT, [7, 8], context=8), Complete([1, 2, 3, 7, 8], 3)),
        (held(PROMPT, [7], context=0), Complete([1, 2, 3, 7], 9)),
        (held(PROMPT, [], context=3), NoRoom("the prompt has 3 tokens and leaves no room in a context of 3")),
        (held([], [], protocol=run_pb2.PROTOCOL_CHAT), Chat()),
        (held(PROMPT, [], stage=run_pb2.STAGE_EXTRACT), Extract()),
        (held(PROMPT, [7], finish_reason=pb.FINISH_REASON_STOP), Parse()),
    ],
)
def test_next(item: Held, expected: object) -> None:
    assert plan(item) == expected


@pytest.mark.parametrize("limit", [{"max_tokens": 2}, {"context": 5}])
def test_a_budget_that_is_used_up_ends_with_length(limit: dict[str, int]) -> None:
    item = held(PROMPT, [7, 8], **limit)
    assert plan(item) == Parse()
    assert item.answered == (pb.FINISH_REASON_LENGTH, "")


def test_a_partial_that_ends_in_a_stop_id_is_complete() -> None:
    item = held(PROMPT, [7, 8], sampling=run_pb2.Sampling(stop_token_ids=[8]))
    assert plan(item) == Parse()
    assert item.answered == (pb.FINISH_REASON_STOP, "8")
