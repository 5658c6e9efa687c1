"""A dispatcher that fits on a page: what the Work protocol asks of the other side, as a state machine for tests."""

from collections import deque
from dataclasses import dataclass, field

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.run.v1 import run_pb2

CHUNK = 4


@dataclass
class Work:
    position: int
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    chat: bool = False
    attempt: int = 0
    leased: bool = False
    finished: pb.Finished | None = None
    durable: bool = False

    @property
    def item(self) -> pb.Item:
        return pb.Item(run="r", stage=run_pb2.STAGE_GENERATE, position=self.position)


class Dispatcher:
    """Speaks to one generator over `outbox`; is given what the generator sends by `receive`."""

    def __init__(self, works: list[Work]) -> None:
        self.works = {work.position: work for work in works}
        self.outbox: deque[pb.WorkResponse] = deque()
        self._counter = 0
        self._declared: set[int] | None = None

    def connect(self) -> None:
        self.outbox.clear()
        self._declared = set()
        self.outbox.append(pb.WorkResponse(welcome=WELCOME))

    def restart(self, keep: float) -> None:
        """Forgets who has what, and the end of each partial answer."""
        for work in self.works.values():
            if not work.durable:
                work.leased, work.finished = False, None
                work.ids = [] if work.chat else work.ids[: int(len(work.ids) * keep)]
                if not work.ids:
                    work.prompt = []

    def assign(self, position: int) -> None:
        work = self.works[position]
        assert self._declared is None
        assert not work.leased
        assert not work.durable
        self._counter += 1
        work.attempt, work.leased, work.finished = self._counter, True, None
        if work.chat:
            work.ids, work.prompt = [], []
        ids = work.prompt + work.ids
        assign = pb.Assign(
            item=work.item,
            attempt=work.attempt,
            endpoint="http://m",
            protocol=run_pb2.PROTOCOL_CHAT if work.chat else run_pb2.PROTOCOL_TOKENS,
            messages="[]",
            prompt_length=len(work.prompt),
            length=len(work.ids),
            ids=ids[:CHUNK],
            max_tokens=1000,
        )
        self.outbox.append(pb.WorkResponse(assign=assign))
        for offset in range(CHUNK, len(ids), CHUNK):
            more = pb.AssignIds(item=work.item, attempt=work.attempt, offset=offset, ids=ids[offset : offset + CHUNK])
            self.outbox.append(pb.WorkResponse(assign_ids=more))

    def stop(self, position: int, reason: pb.StopReason.ValueType) -> None:
        work = self.works[position]
        if reason == pb.STOP_REASON_FORGET:
            work.leased = False
        self._stop(work.item, work.attempt, reason)

    def commit(self, position: int) -> None:
        work = self.works[position]
        assert work.finished is not None
        work.durable, work.leased = True, False
        self.outbox.append(pb.WorkResponse(durable=pb.Durable(item=work.item, attempt=work.attempt)))

    def receive(self, request: pb.WorkRequest) -> None:
        kind = request.WhichOneof("message")
        message = getattr(request, kind)
        if kind == "holding":
            self._holding(message)
        elif kind == "holding_done":
            for work in self.works.values():
                if work.leased and work.position not in self._declared:
                    work.leased = False
            self._declared = None
        elif kind not in ("hello", "heartbeat"):
            work = self.works[message.item.position]
            if work.leased and work.attempt == message.attempt and self._declared is None:
                getattr(self, f"_{kind}")(work, message)

    def _holding(self, holding: pb.Holding) -> None:
        work = self.works[holding.item.position]
        if work.durable:
            self.outbox.append(pb.WorkResponse(durable=pb.Durable(item=work.item, attempt=holding.attempt)))
        elif work.attempt == holding.attempt:
            self._declared.add(work.position)
            work.leased = True
            self._ack(work)
        else:
            self._stop(work.item, holding.attempt, pb.STOP_REASON_FORGET)

    def _prompt(self, work: Work, message: pb.Prompt) -> None:
        assert message.offset == len(work.prompt), "a prompt with a gap or a repeat"
        work.prompt += message.ids
        assert len(work.prompt) <= message.total

    def _tokens(self, work: Work, message: pb.Tokens) -> None:
        assert 0 < len(message.ids) <= CHUNK
        assert message.offset == len(work.ids), "ids with a gap or a repeat"
        work.ids += message.ids
        self._ack(work)

    def _finished(self, work: Work, message: pb.Finished) -> None:
        assert message.length == len(work.ids)
        work.finished = message

    def _interrupted(self, work: Work, message: pb.Interrupted) -> None:
        assert message.length == len(work.ids)
        self.stop(work.position, pb.STOP_REASON_FORGET)

    def _released(self, work: Work, message: pb.Released) -> None:
        assert message.length == len(work.ids)
        self.stop(work.position, pb.STOP_REASON_FORGET)

    def _ack(self, work: Work) -> None:
        ack = pb.Ack(item=work.item, attempt=work.attempt, prompt_length=len(work.prompt), length=len(work.ids))
        self.outbox.append(pb.WorkResponse(ack=ack))

    def _stop(self, item: pb.Item, attempt: int, reason: pb.StopReason.ValueType) -> None:
        self.outbox.append(pb.WorkResponse(stop=pb.Stop(item=item, attempt=attempt, reason=reason)))


WELCOME = pb.Welcome(epoch=1, lease_seconds=20, silence_seconds=15, heartbeat_seconds=5, progress_seconds=1)
