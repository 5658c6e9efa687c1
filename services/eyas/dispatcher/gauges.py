"""Brings the metrics up to date with the run that is worked on."""

from eyas.dispatcher.core.course import STAGES
from eyas.dispatcher.core.items import State
from eyas.dispatcher.core.work import Work
from eyas.dispatcher.metrics import Metrics
from eyas.dispatcher.run import Run


class Gauges:
    """Counters grow by what is new since the last look at the same stage."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._work: Work | None = None
        self._seen: dict[str, int] = {}
        self._urls: set[str] = set()

    def update(self, run: Run | None) -> None:
        """A look at the run."""
        metrics = self._metrics
        for number, name in STAGES.items():
            metrics.stage.labels(name).set(run is not None and run.course.stage == number)
        stage = run.items if run is not None else None
        if stage is None:
            return
        if stage.work is not self._work:
            self._work = stage.work
            stored = stage.work.counters.done_tokens
            self._seen = {"generated": stored, "useful": stored}
        counts, counters = stage.items.counts, stage.work.counters
        waiting = (State.NEW, State.BLOCKED, State.WAITING, State.HELD, State.SUSPECT)
        for name, value in (
            ("ok", counts[State.OK]),
            ("truncated", counts[State.TRUNCATED]),
            ("failed", counts[State.FAILED]),
            ("in_flight", counts[State.LEASED]),
            ("waiting", sum(counts[state] for state in waiting)),
            ("uncommitted", counts[State.ENDED]),
        ):
            metrics.items.labels(name).set(value)
        for outcome, count in counters.attempts.items():
            metrics.attempts.labels(outcome).inc(self._new(f"attempts {outcome}", count))
        for phase, count in counters.timeouts.items():
            metrics.timeouts.labels(phase).inc(self._new(f"timeouts {phase}", count))
        metrics.tokens.labels("generated").inc(self._new("generated", counters.generated))
        metrics.tokens.labels("useful").inc(self._new("useful", counters.generated - counters.lost))
        metrics.tokens.labels("regenerated").inc(self._new("regenerated", counters.regenerated))
        metrics.lease_losses.inc(self._new("lease losses", counters.lease_losses))
        metrics.uncommitted_bytes.set(stage.uncommitted_bytes())
        metrics.uncommitted_age.set(stage.uncommitted_age())
        self._endpoints(stage.work)

    def _endpoints(self, work: Work) -> None:
        for url in self._urls - work.endpoints.keys():
            self._metrics.limit.remove(url)
            self._metrics.in_flight.remove(url)
        self._urls = set(work.endpoints)
        for url, endpoint in work.endpoints.items():
            self._metrics.limit.labels(url).set(endpoint.limit)
            self._metrics.in_flight.labels(url).set(len(endpoint.in_flight))

    def _new(self, name: str, value: int) -> int:
        """What a counter has grown by. Useful tokens that were lost later are not taken back."""
        new = max(0, value - self._seen.get(name, 0))
        self._seen[name] = max(value, self._seen.get(name, 0))
        return new
