"""The stage that generates answers: rows of the log of generations, each exactly once."""

import json
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher import closing, messages
from eyas.dispatcher.answers import Answers, AnswersFormat, Contents
from eyas.dispatcher.context import Context
from eyas.dispatcher.core.items import DURABLE, Items, State
from eyas.dispatcher.core.partial import Finish, Partial, Rules
from eyas.dispatcher.samples import Samples
from eyas.dispatcher.stage import ItemStage, RunView, thresholds
from eyas.dispatcher.writer import Writer
from eyas.run.v1 import run_pb2
from eyas.storage.log import Log, Part
from eyas.storage.tables import GenerationRow
from eyas.vllm import launch


@dataclass(frozen=True, slots=True)
class _Ended:
    """An answer that waits to be written. Its ids stay where they are: in the partial."""

    partial: Partial
    message: pb.Finished
    started_at: datetime
    finished_at: datetime
    model: str


class Generating(ItemStage):
    """Generates every turn of every sample."""

    stage = run_pb2.STAGE_GENERATE
    name = "generate"
    writer: Writer[_Ended, Answers]

    def __init__(self, run: RunView, context: Context) -> None:
        super().__init__(run, context)
        self._samples = Samples(context.store, run.layout, run.course.spec.dataset.samples)
        self._contents = Contents()
        self._multi_turn = run.course.spec.dataset.generations > run.course.spec.dataset.samples

    async def build(self) -> Items:
        """States from the log of generations."""
        settings, context = self.context.settings, self.context
        items = Items(self._samples.count, await self._samples.turns() if self._multi_turn else None)
        log: Log[Answers] = Log(
            context.store,
            self.run_view.layout.generations,
            ".parquet",
            AnswersFormat(self._multi_turn),
            context.epoch,
            context.nonce,
        )
        self.stored_tokens = 0
        async for part in log.catch_up():
            self.stored_tokens += part.value.tokens
            self._read(items, part.value)
        context.outbid(log)
        self.writer = Writer(
            log,
            rows=settings.flush_rows,
            seconds=settings.flush_seconds,
            size=_size,
            build=self._rows,
            absorbed=self._absorbed,
            committed=self._committed,
            trouble=self.run_view.trouble,
            clock=context.now,
        )
        return items

    async def open(self) -> None:
        """Counts what is stored among the tokens."""
        await super().open()
        self.work.counters.done_tokens += self.stored_tokens
        self.work.counters.generated += self.stored_tokens

    def rules(self) -> Rules:
        """Tokens continue; chat starts again, and may have no ids."""
        spec = self.run_view.course.spec
        tokens = spec.generation.protocol == run_pb2.PROTOCOL_TOKENS
        return Rules(
            max_tokens=spec.generation.max_tokens,
            context=spec.model.fingerprint.context or 1 << 31,
            stop_ids=frozenset((*spec.model.fingerprint.eos_token_ids, *spec.generation.sampling.stop_token_ids)),
            continues=tokens,
            needs_prompt=tokens,
            thresholds=thresholds(spec),
        )

    def concurrency(self) -> int:
        """As set."""
        return self.run_view.course.spec.generation.concurrency

    def urls(self) -> set[str]:
        """The user's, and those launched for the run."""
        given = {endpoint.url.rstrip("/") for endpoint in self.run_view.course.spec.endpoints}
        return given | self.run_view.server_urls()

    def samples(self) -> Samples:
        """The samples of the run."""
        return self._samples

    def loaded(self, index: int) -> bool:
        """A prompt that is known needs no messages."""
        partial = self.work.partials.get(index)
        if partial is not None and partial.prompt_known:
            return True
        return self._samples.loaded(self.items.place(index)[0])

    async def load(self, index: int) -> None:
        """Reads the part of the samples that it is in."""
        await self._samples.load(self.items.place(index)[0])

    def assignment(self, partial: Partial) -> pb.Assign:
        """Settings, and the messages where there are no ids yet."""
        spec = self.run_view.course.spec
        assign = pb.Assign(
            model=launch.served_name(spec),
            protocol=spec.generation.protocol,
            chat_template_kwargs=spec.generation.chat_template_kwargs,
            max_tokens=spec.generation.max_tokens,
            sampling=spec.generation.sampling,
            timeouts=spec.timeouts,
            priority=spec.generation.priority,
            context=spec.model.fingerprint.context,
        )
        if not partial.prompt_known:
            position, turn = self.items.place(partial.index)
            assign.messages = json.dumps(self._contents.history(self._samples.row(position), turn), ensure_ascii=False)
        return assign

    def finished(self, name: str, index: int, message: pb.Finished) -> None:
        """Queues the row."""
        finish = messages.FINISHES.get(message.finish_reason)
        if finish is None or not self.work.finished(name, index, message.attempt, message.length, finish):
            return
        partial = self.work.partials[index]
        now = datetime.now(UTC)
        seconds = max(0.0, self.context.now() - partial.began)
        self.writer.add(
            _Ended(
                partial, message, now - timedelta(seconds=seconds), now, launch.served_name(self.run_view.course.spec)
            )
        )

    def pending(self) -> int:
        """Rows that are queued."""
        return len(self.writer)

    def hurry(self) -> None:
        """Writes the queued rows."""
        self.writer.hurry()

    async def flushed(self) -> None:
        """Waits for the queued rows."""
        await self.writer.flushed()

    def writers(self) -> Iterable[Callable[[], Coroutine[None, None, None]]]:
        """The writer of rows."""
        return (self.writer.run,)

    def uncommitted_bytes(self) -> int:
        """Of rows and failures."""
        return self.writer.bytes + self.failures.bytes

    def uncommitted_age(self) -> float:
        """Of the oldest row."""
        return 0.0 if self.writer.oldest is None else self.context.now() - self.writer.oldest

    async def verify(self) -> None:
        """Every turn of every sample has one row, or was given up."""
        given_up = {self.items.place(i) for i in range(len(self.items)) if self.items.state(i) is State.FAILED}
        spec = self.run_view.course.spec
        await closing.check(self.context.store, self.run_view.layout, spec.dataset, given_up)

    # Rows.

    async def _rows(self, entries: Sequence[_Ended]) -> Answers | None:
        wanted = [
            entry
            for entry in entries
            if self.items.state(entry.partial.index) is State.ENDED
            and self.work.partials.get(entry.partial.index) is entry.partial
        ]
        samples = await self._samples.rows(self.items.place(entry.partial.index)[0] for entry in wanted)
        rows = []
        for entry in wanted:
            position, turn = self.items.place(entry.partial.index)
            sample = samples[position]
            rows.append(_row(entry, turn, sample["sample_id"], sample["split"], sample["source"], position))
            rows[-1]["messages"] = self._contents.history(sample, turn)
        return Answers(rows) if rows else None

    def _committed(self, entries: Sequence[_Ended]) -> None:
        done = []
        for entry in entries:
            index = entry.partial.index
            if self.work.partials.get(index) is not entry.partial:
                continue
            done.append(index)
            self._keep(self.items, index, entry.message.message.content)
        self.work.committed(done)
        self.pump()

    def _absorbed(self, part: Part[Answers]) -> None:
        self._read(self.items, part.value, absorb=True)
        self.pump()

    def _read(self, items: Items, answers: Answers, *, absorb: bool = False) -> None:
        contents = answers.contents or [""] * len(answers.positions)
        for position, turn, finish, content in zip(
            answers.positions, answers.turns, answers.finishes, contents, strict=True
        ):
            index = items.index(position, turn)
            if index is None:
                continue
            self._keep(items, index, content)
            if absorb:
                self.work.absorb(index, Finish(finish))
            elif items.state(index) not in DURABLE:
                items.move(index, State.OK if finish == Finish.STOP.value else State.TRUNCATED)
                for following in items.later_turns(index)[:1]:
                    if items.state(following) is State.BLOCKED:
                        items.move(following, State.NEW)

    def _keep(self, items: Items, index: int, content: str) -> None:
        """Keeps an answer while turns of its conversation are to come."""
        if not self._multi_turn:
            return
        position, turn = items.place(index)
        if items.later_turns(index):
            self._contents.keep(position, turn, content)
        else:
            self._contents.drop(position)


def _row(entry: _Ended, turn: int, sample_id: str, split: str, source: str, position: int) -> GenerationRow:  # noqa: PLR0917
    partial, message = entry.partial, entry.message
    return {
        "sample_id": sample_id,
        "turn": turn,
        "position": position,
        "split": split,
        "source": source,
        "messages": [],
        "prompt_ids": partial.prompt,
        "ids": partial.ids,
        "finish_reason": "stop" if message.finish_reason == pb.FINISH_REASON_STOP else "length",
        "stop_reason": message.stop_reason,
        "reasoning": message.message.reasoning,
        "content": message.message.content,
        "tool_calls": message.message.tool_calls,
        "attempts": partial.tries,
        "interruptions": partial.causes,
        "lost_tokens": partial.lost,
        "endpoint": partial.endpoint,
        "model": entry.model,
        "started_at": entry.started_at,
        "finished_at": entry.finished_at,
        "first_token_seconds": message.first_token_seconds,
        "seconds": message.seconds,
    }


def _size(entry: _Ended) -> int:
    partial, answer = entry.partial, entry.message.message
    return 1000 + 4 * (len(partial.prompt) + len(partial.ids)) + 2 * (len(answer.content) + len(answer.reasoning))
