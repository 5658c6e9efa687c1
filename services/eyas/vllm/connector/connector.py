"""The class that vLLM loads: its interface on one side, `Plan` and `Work` on the other."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from eyas.errors import InputError
from eyas.storage.objects import open_store
from eyas.vllm.connector.copies import Copier, find_buffer, find_group
from eyas.vllm.connector.plan import Plan, Save
from eyas.vllm.connector.settings import check_server, read_settings
from eyas.vllm.connector.stats import Metrics, Stats
from eyas.vllm.connector.uploads import Tally, Uploads
from eyas.vllm.connector.work import Work

_log = logging.getLogger("vllm.eyas.connector")
T = TypeVar("T")


def _harmless(default: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Logs what a method raises, and returns `default`: vLLM ends on any exception of a connector."""

    def wrap(method: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(method)
        def harmless(self: "EyasHiddenStatesConnector", *args: Any, **kwargs: Any) -> T:
            try:
                return method(self, *args, **kwargs)
            except InputError as error:
                _log.error("No hidden states: %s", error)
                self.tally.add("refused")
            except Exception:  # noqa: BLE001
                _log.exception("No hidden states: %s failed", method.__name__)
                self.tally.add("failed")
            return cast(T, default)

        return harmless

    return wrap


@dataclass
class SavesMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """What goes from the scheduler to the workers with each step."""

    saves: list[Save] = field(default_factory=list)
    idle: bool = False


class EyasHiddenStatesConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Writes hidden states to object storage. vLLM makes one in its scheduler and one in each worker."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.tally = Tally()
        self._settings = read_settings(self._kv_transfer_config.kv_connector_extra_config)
        self._layer_ids = check_server(vllm_config, self._settings.layer_ids)
        self._group, self._block_size = find_group(kv_cache_config.kv_cache_groups)
        self._plan = Plan(self._block_size)
        self._work: Work | None = None

    # In the scheduler

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:  # noqa: ARG002
        """Nothing is ever loaded."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing is ever loaded."""

    @_harmless((False, None))
    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Plans the request's save, if it asked for one. True: vLLM keeps the blocks until `get_finished` names it."""
        if self._group >= len(block_ids):  # never scheduled
            return False, None
        return self._plan.add(request, block_ids[self._group]), None

    def build_connector_meta(self, scheduler_output: Any) -> SavesMetadata:
        """What was planned since the last step."""
        return SavesMetadata(self._plan.take(), scheduler_output.total_num_scheduled_tokens == 0)

    def get_finished_count(self) -> int:
        """One worker reports each save."""
        return 1

    # In a worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Makes this worker the writer, if it is the one that should be: all tensor-parallel ranks hold the same."""
        buffer = find_buffer(kv_caches)
        if buffer is None or get_tensor_model_parallel_rank() != 0:
            return
        settings = self._settings
        uploads = Uploads(
            open_store(settings.storage_uri),
            self.tally,
            threads=settings.upload_threads,
            bytes_in_flight=settings.bytes_in_flight,
            seconds=settings.upload_seconds,
        )
        self._work = Work(Copier(buffer, self._block_size, self._layer_ids), uploads, self.tally)
        _log.info("Hidden states of layers %s go to %s", list(self._layer_ids), settings.storage_uri)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing is ever loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is ever loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """The layer is copied when its request is finished."""

    def wait_for_save(self) -> None:
        """Copies go on beside the next steps."""

    @_harmless((None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002
        """Starts copies, and names the requests whose blocks are free.

        A planned request is among `finished_req_ids` of the very step that brings its save, as vLLM demands.
        """
        if self._work is None or not self.has_connector_metadata():
            return None, None
        metadata = self._get_connector_metadata()
        return self._work.step(metadata.saves, idle=metadata.idle) or None, None

    @_harmless(None)
    def shutdown(self) -> None:
        """Waits for the uploads."""
        if self._work is not None:
            self._work.close(self._settings.flush_seconds)

    # In both

    def get_kv_connector_stats(self) -> Stats | None:
        """Counts since the last step."""
        counts = self.tally.take()
        return Stats(data=counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        """Counts as they arrive at vLLM's logger."""
        return Stats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Metrics:
        """Counters on vLLM's /metrics."""
        return Metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
