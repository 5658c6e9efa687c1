"""Between the core's words and the protocol's."""

from collections.abc import Iterator
from typing import cast

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher.core.items import Items
from eyas.dispatcher.core.partial import Finish, Partial
from eyas.dispatcher.core.policy import Cause
from eyas.run.v1 import run_pb2

IDS = 4096
"""Most ids of a message."""

FINISHES = {pb.FINISH_REASON_STOP: Finish.STOP, pb.FINISH_REASON_LENGTH: Finish.LENGTH}
_REASONS = {finish: reason for reason, finish in FINISHES.items()}
_CAUSES = {
    number: Cause(name.removeprefix("CAUSE_").lower())
    for name, number in pb.Cause.items()
    if number != pb.CAUSE_UNSPECIFIED
}


def cause(number: "pb.Cause.ValueType") -> Cause:
    """The core's cause; one that this version does not know is UNKNOWN."""
    return _CAUSES.get(number, Cause.UNKNOWN)


def item(run: str, stage: int, items: Items, index: int) -> pb.Item:
    """The item by name."""
    position, turn = items.place(index)
    return pb.Item(run=run, stage=cast("run_pb2.Stage.ValueType", stage), position=position, turn=turn)


def assignment(assign: pb.Assign, partial: Partial, complete: Finish | None) -> Iterator[pb.WorkResponse]:
    """Assign and its AssignIds: prompt and partial answer in chunks. `assign` has all that the item's stage sets."""
    assign.attempt = partial.attempt
    assign.endpoint = partial.endpoint
    held = [*partial.prompt, *partial.ids] if partial.prompt_known else []
    if held:
        assign.prompt_length, assign.length = len(partial.prompt), len(partial.ids)
        assign.ids.extend(held[:IDS])
    if complete is not None:
        assign.finish_reason = _REASONS[complete]
    yield pb.WorkResponse(assign=assign)
    for offset in range(IDS, len(held), IDS):
        more = pb.AssignIds(item=assign.item, attempt=assign.attempt, offset=offset, ids=held[offset : offset + IDS])
        yield pb.WorkResponse(assign_ids=more)
