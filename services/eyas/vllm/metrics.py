"""What a vLLM says of itself on /metrics, as one value.

Counters of all data-parallel engines are added up; a server that speculates has the spec-decode counters, others not.
"""

from collections import defaultdict
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from eyas.errors import EndpointError

_START = "process_start_time_seconds"
_WANTED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    _START,
)


@dataclass(frozen=True, slots=True)
class SpecDecode:
    """Speculative decoding since the start of the server."""

    drafts: int
    """Steps in which tokens were drafted."""
    draft_tokens: int
    accepted_tokens: int
    accepted_by_position: tuple[int, ...]
    """Accepted tokens by their position in the draft."""


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """A moment of a server. Counters run since its start."""

    running: int
    """Requests that are computed."""
    waiting: int
    """Requests in its queue."""
    kv_usage: float
    """Share of the KV cache in use, of the fullest engine."""
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    started_at: float
    """Unix time at which the process started, to tell a restarted server; 0 when it doesn't say."""
    spec_decode: SpecDecode | None


def parse(text: str) -> ServerMetrics:
    """Reads the text of /metrics. Raises EndpointError when it is not a vLLM's."""
    values: dict[str, list[float]] = defaultdict(list)
    by_position: dict[int, float] = defaultdict(float)
    # A vLLM has thousands of histogram lines: only the wanted ones are worth parsing.
    lines = "\n".join(line for line in text.splitlines() if line.startswith(_WANTED)) + "\n"
    try:
        for family in text_string_to_metric_families(lines):
            for sample in family.samples:
                if "position" in sample.labels:
                    by_position[int(sample.labels["position"])] += sample.value
                else:
                    values[sample.name].append(sample.value)
    except ValueError as error:
        raise EndpointError(f"/metrics is not Prometheus text: {error}") from error
    if "vllm:num_requests_running" not in values:
        raise EndpointError("/metrics does not hold vllm:num_requests_running: the server is not a vLLM")

    def total(name: str) -> int:
        return int(sum(values[name]))

    spec_decode = None
    if "vllm:spec_decode_num_drafts_total" in values:
        spec_decode = SpecDecode(
            drafts=total("vllm:spec_decode_num_drafts_total"),
            draft_tokens=total("vllm:spec_decode_num_draft_tokens_total"),
            accepted_tokens=total("vllm:spec_decode_num_accepted_tokens_total"),
            accepted_by_position=tuple(int(by_position[position]) for position in sorted(by_position)),
        )
    return ServerMetrics(
        running=total("vllm:num_requests_running"),
        waiting=total("vllm:num_requests_waiting"),
        kv_usage=max(values["vllm:kv_cache_usage_perc"], default=0.0),
        preemptions=total("vllm:num_preemptions_total"),
        prompt_tokens=total("vllm:prompt_tokens_total"),
        generation_tokens=total("vllm:generation_tokens_total"),
        started_at=max(values[_START], default=0.0),
        spec_decode=spec_decode,
    )
