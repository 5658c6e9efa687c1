"""vLLM's /metrics as one value."""

import pytest

from eyas.errors import EndpointError
from eyas.vllm.metrics import SpecDecode, parse

TEXT = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
process_start_time_seconds 1.79e+09
"""
SPECULATION = """vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 3.0
"""


def test_engines_are_added_up() -> None:
    metrics = parse(TEXT)
    assert (metrics.running, metrics.waiting, metrics.kv_usage, metrics.preemptions) == (7, 2, 0.5, 1)
    assert (metrics.prompt_tokens, metrics.generation_tokens, metrics.started_at) == (100, 1_500_000, 1.79e9)
    assert metrics.spec_decode is None


def test_speculation() -> None:
    assert parse(TEXT + SPECULATION).spec_decode == SpecDecode(10, 30, 12, (8, 4))


@pytest.mark.parametrize("text", ["", "go_goroutines 5\n", "vllm:num_requests_running{ 3\n"])
def test_what_is_not_vllms(text: str) -> None:
    with pytest.raises(EndpointError, match="/metrics"):
        parse(text)
