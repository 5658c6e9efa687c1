"""At the end of its life a generator starts nothing, says so, and gives back what it has."""

from array import array

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.generator.core.ledger import Act, Ledger
from eyas.run.v1 import run_pb2


def assign(position: int, prompt_length: int = 0, ids: tuple[int, ...] = (), length: int = 0) -> pb.WorkResponse:
    item = pb.Item(run="r", stage=run_pb2.STAGE_GENERATE, position=position)
    message = pb.Assign(
        item=item, attempt=position + 1, max_tokens=10, prompt_length=prompt_length, length=length, ids=ids
    )
    return pb.WorkResponse(assign=message)


def connected() -> Ledger:
    ledger = Ledger("g", 10)
    ledger.open(0.0)
    ledger.take(0.0)
    ledger.receive(pb.WorkResponse(welcome=ledger.welcome), 0.0)
    return ledger


def kinds(messages: list[pb.WorkRequest]) -> list[str | None]:
    return [message.WhichOneof("message") for message in messages]


def test_draining_is_said_at_once_and_with_each_heartbeat() -> None:
    ledger = connected()
    ledger.drain()
    assert ledger.due == 0.0
    (message,) = ledger.take(0.1)
    assert message.heartbeat.draining
    assert kinds(ledger.take(5.2)) == ["heartbeat"]


def test_what_is_handed_out_while_draining_is_not_started_and_given_back() -> None:
    ledger = connected()
    ledger.drain()
    ledger.take(0.1)
    assert ledger.receive(assign(0), 0.2) == []
    assert ledger.release_all() == []
    (message,) = ledger.take(0.3)
    assert (message.released.item.position, message.released.length) == (0, 0)


def test_what_runs_is_stopped_and_given_back_with_its_tokens() -> None:
    ledger = connected()
    (order,) = ledger.receive(assign(0, prompt_length=2, ids=(1, 2)), 0.0)
    order.held.extend(array("I", [7, 8]))
    (stop,) = ledger.release_all()
    assert (stop.act, stop.held) == (Act.STOP, order.held)
    order.held.extend(array("I", [9]))
    tokens, released = ledger.take(0.1)
    assert list(tokens.tokens.ids) == [7, 8]
    assert released.released.length == 2
    assert ledger.items
    forget = pb.Stop(item=order.held.item, attempt=1, reason=pb.STOP_REASON_FORGET)
    assert ledger.receive(pb.WorkResponse(stop=forget), 0.2) == []
    assert not ledger.items


def test_an_assignment_that_is_not_whole_is_given_back_once_it_is() -> None:
    ledger = connected()
    ledger.receive(assign(0, prompt_length=2, length=1, ids=(1, 2)), 0.0)
    assert ledger.release_all() == []
    assert ledger.take(0.1) == []
    rest = pb.AssignIds(item=pb.Item(run="r", stage=1, position=0), attempt=1, offset=2, ids=[7])
    assert ledger.receive(pb.WorkResponse(assign_ids=rest), 0.2) == []
    (message,) = ledger.take(0.3)
    assert message.released.length == 1


def test_an_ended_answer_is_not_given_back() -> None:
    ledger = connected()
    (order,) = ledger.receive(assign(0, prompt_length=1, ids=(1,)), 0.0)
    order.held.answered = (pb.FINISH_REASON_LENGTH, "")
    ledger.finish(order.held, pb.Message(), 0.1, 0.2)
    assert ledger.release_all() == []
    assert kinds(ledger.take(0.1)) == ["finished"]
