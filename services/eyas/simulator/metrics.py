"""The simulator's /metrics, with vLLM's names."""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eyas.simulator.engine import Engine

_LABELS = ("model_name", "engine")


class EngineCollector(Collector):
    """Reads the engine when it is scraped."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._values = (model, "0")
        self._started = time.time()

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        engine = self._engine
        for name, value in (
            ("num_requests_running", len(engine.running)),
            ("num_requests_waiting", len(engine.waiting)),
            ("kv_cache_usage_perc", 0.0),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", name.replace("_", " "), labels=_LABELS)
            gauge.add_metric(self._values, value)
            yield gauge
        for name, value in (
            ("num_preemptions", 0),
            ("prompt_tokens", engine.prompt_tokens),
            ("generation_tokens", engine.generation_tokens),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", name.replace("_", " "), labels=_LABELS)
            counter.add_metric(self._values, value)
            yield counter
        yield GaugeMetricFamily("process_start_time_seconds", "When the server started.", value=self._started)


def registry_of(engine: Engine, model: str) -> CollectorRegistry:
    """A registry that holds the engine's metrics."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, model))
    return registry
