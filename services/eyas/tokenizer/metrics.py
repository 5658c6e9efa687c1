"""Metrics of the tokenizer."""

from prometheus_client import CollectorRegistry, Counter, Histogram

METHODS = ("render", "parse")
OUTCOMES = ("ok", "rejected")


class Metrics:
    """Counters and times of the calls that work, all made at zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "eyas_tokenizer_calls", "Calls by method and outcome.", ["method", "outcome"], registry=registry
        )
        self.seconds = Histogram(
            "eyas_tokenizer_call_seconds",
            "Seconds of a call, the wait for the thread included.",
            ["method"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0),
            registry=registry,
        )
        self.ids = Counter("eyas_tokenizer_ids", "Ids rendered or parsed.", ["method"], registry=registry)
        for method in METHODS:
            self.seconds.labels(method)
            self.ids.labels(method)
            for outcome in OUTCOMES:
                self.calls.labels(method, outcome)
