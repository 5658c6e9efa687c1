"""What the connector did, in vLLM's log and on its /metrics."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from eyas.vllm.connector.uploads import OUTCOMES


class Stats(KVConnectorStats):  # type: ignore[misc]
    """Counts by name since the last report, on their way from a worker to vLLM's logger."""

    data: dict[str, int]

    def reset(self) -> None:
        """Forgets them."""
        self.data = {}

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds those of another worker or step."""
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log line."""
        return {f"hidden states {name}": amount for name, amount in self.data.items()}


class Metrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """Counters on vLLM's /metrics."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labels: list[str], engines: dict[int, list[object]]
    ) -> None:
        super().__init__(vllm_config, metric_types, labels, engines)
        objects = self._counter_cls(
            name="eyas_hidden_states_objects",
            documentation="Hidden-states objects by what became of them.",
            labelnames=[*labels, "outcome"],
        )
        written = self._counter_cls(
            name="eyas_hidden_states_written_bytes",
            documentation="Bytes of hidden-states objects written.",
            labelnames=labels,
        )
        self._counters = {
            engine: {outcome: objects.labels(*values, outcome) for outcome in OUTCOMES}
            | {"bytes": written.labels(*values)}
            for engine, values in engines.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds a report."""
        for name, amount in transfer_stats_data.items():
            self._counters[engine_idx][name].inc(amount)
