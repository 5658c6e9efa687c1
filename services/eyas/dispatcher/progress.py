"""Where a run stands, as a message."""

from collections import deque

from eyas.dispatcher.core.items import State
from eyas.dispatcher.core.limit import Health
from eyas.dispatcher.core.policy import trouble
from eyas.dispatcher.stage import ItemStage
from eyas.run.v1 import run_pb2

_WINDOW = 60.0


class Rate:
    """Tokens a second over the last minute."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, now: float, total: int) -> None:
        """The count as it is now."""
        self._points.append((now, total))
        while now - self._points[0][0] > _WINDOW:
            self._points.popleft()

    @property
    def per_second(self) -> float:
        """0 when too little is known."""
        if len(self._points) < 2:
            return 0.0
        (began, before), (now, after) = self._points[0], self._points[-1]
        return (after - before) / (now - began) if now > began else 0.0


def fill(progress: run_pb2.Progress, stage: ItemStage, rate: Rate, generators: int) -> None:
    """What a stage of items knows."""
    counts, counters = stage.items.counts, stage.work.counters
    waiting = (State.NEW, State.BLOCKED, State.WAITING, State.HELD, State.SUSPECT)
    progress.items.CopyFrom(
        run_pb2.Items(
            total=stage.items.total,
            ok=counts[State.OK],
            truncated=counts[State.TRUNCATED],
            failed=counts[State.FAILED],
            in_flight=counts[State.LEASED],
            waiting=sum(counts[state] for state in waiting),
            uncommitted=counts[State.ENDED],
        )
    )
    done = counts[State.OK] + counts[State.TRUNCATED]
    mean = counters.done_tokens / done if done else 0.0
    progress.tokens.CopyFrom(
        run_pb2.Tokens(
            generated=counters.generated,
            useful=counters.generated - counters.lost,
            regenerated=counters.regenerated,
            per_second=rate.per_second,
            mean_length=mean,
        )
    )
    progress.timeouts.update(counters.timeouts)
    progress.attempts.update(counters.attempts)
    for endpoint in sorted(stage.work.endpoints.values(), key=lambda endpoint: endpoint.url):
        progress.endpoints.add(
            url=endpoint.url,
            limit=endpoint.limit,
            in_flight=len(endpoint.in_flight),
            healthy=endpoint.health is Health.UP,
            reason=endpoint.reason,
        )
    if progress.state == run_pb2.STATE_RUNNING and not progress.reason:
        progress.reason = _bound(stage, generators)


def remaining(stage: ItemStage, rate: Rate, elapsed: float, done_at_start: int) -> float:
    """Seconds left: by tokens, since the short answers end first; by items where there are no tokens."""
    counts, counters = stage.items.counts, stage.work.counters
    done = counts[State.OK] + counts[State.TRUNCATED]
    left = stage.items.total - stage.items.closed
    if not left:
        return 0.0
    partial = sum(len(partial.ids) for partial in stage.work.partials.values())
    if done and counters.done_tokens and rate.per_second:
        longest = max((len(partial.ids) for partial in stage.work.partials.values()), default=0)
        mean = max(counters.done_tokens / done, longest / 2)
        return max(0.0, left * mean - partial) / rate.per_second
    closed = stage.items.closed - done_at_start
    return left * elapsed / closed if closed > 0 else 0.0


def _bound(stage: ItemStage, generators: int) -> str:
    """What keeps the run from going on, or slows it; empty when nothing does."""
    if not generators:
        return "no generator is connected"
    endpoints = stage.work.endpoints.values()
    if not endpoints:
        return "waits for a server"
    down = [endpoint for endpoint in endpoints if endpoint.health is Health.DOWN]
    if down and len(down) == len(endpoints):
        return f"waits for {down[0].url}: {down[0].reason}"
    return trouble(stage.work.counters, stage.work.rules.thresholds)


def empty(run: str, stage: int, until: int) -> run_pb2.Progress:
    """A progress with what every run has."""
    progress = run_pb2.Progress(run=run)
    progress.stage = stage  # type: ignore[assignment]
    progress.until = until  # type: ignore[assignment]
    return progress
