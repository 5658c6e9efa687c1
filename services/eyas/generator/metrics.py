"""The generator's metrics."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.generator.core.held import Ending
from eyas.generator.core.ledger import Ledger
from eyas.vllm.phases import Activity, Phase

OUTCOMES = ("ok", "truncated", "timeout", "endpoint", "item", "released")

_PHASES = {
    pb.CAUSE_TIMEOUT_CONNECT: Phase.CONNECT,
    pb.CAUSE_TIMEOUT_FIRST_TOKEN: Phase.FIRST_TOKEN,
    pb.CAUSE_TIMEOUT_STALL: Phase.STALL,
    pb.CAUSE_TIMEOUT_TOTAL: Phase.TOTAL,
}


class Metrics:
    """Counts attempts as they end, and shows what ledger and streams hold."""

    def __init__(self, registry: CollectorRegistry, ledger: Ledger, activities: Mapping[str, Activity]) -> None:
        self._attempts = Counter(
            "eyas_generator_attempts", "Attempts that ended, by outcome.", ["outcome"], registry=registry
        )
        self._timeouts = Counter(
            "eyas_generator_timeouts", "Attempts that ended in a timeout, by phase.", ["phase"], registry=registry
        )
        for outcome in OUTCOMES:
            self._attempts.labels(outcome)
        for phase in Phase:
            self._timeouts.labels(phase.value)
        registry.register(_State(ledger, activities))

    def ended(self, ending: Ending) -> None:
        """An attempt ended."""
        self._attempts.labels(_outcome(ending)).inc()
        if isinstance(ending, pb.Interrupted) and ending.cause in _PHASES:
            self._timeouts.labels(_PHASES[ending.cause].value).inc()


def _outcome(ending: Ending) -> str:
    match ending:
        case pb.Finished():
            return "truncated" if ending.finish_reason == pb.FINISH_REASON_LENGTH else "ok"
        case pb.Interrupted():
            if ending.cause in _PHASES:
                return "timeout"
            return "item" if ending.cause in (pb.CAUSE_ITEM, pb.CAUSE_TEMPLATE) else "endpoint"
        case _:
            return "released"


class _State(Collector):
    """Read when it is scraped, so that a chunk costs no counter."""

    def __init__(self, ledger: Ledger, activities: Mapping[str, Activity]) -> None:
        self._ledger = ledger
        self._activities = activities

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        activities = list(self._activities.values())
        for name, text, value in (
            ("chunks", "Events of the streams of model servers.", sum(activity.chunks for activity in activities)),
            ("tokens", "Tokens taken from model servers.", sum(activity.tokens for activity in activities)),
        ):
            yield CounterMetricFamily(f"eyas_generator_{name}", text, value=value)
        for name, text, value in (
            ("items", "Items held.", len(self._ledger.items)),
            ("requests", "Requests in flight.", sum(activity.streams for activity in activities)),
            ("connected", "1 while the dispatcher answers.", int(self._ledger.connected)),
        ):
            yield GaugeMetricFamily(f"eyas_generator_{name}", text, value=value)
