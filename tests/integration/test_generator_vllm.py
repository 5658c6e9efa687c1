"""The client against a real vLLM: what the simulator and the readers take for granted."""

import json

import pytest

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.run.v1 import run_pb2
from eyas.vllm.client import VllmClient
from eyas.vllm.interruption import InterruptionError
from eyas.vllm.launch import VllmServer
from eyas.vllm.phases import Activity, Limits
from eyas.vllm.requests import ChatRequest, ExtractionRequest, TokensRequest

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

GREEDY = run_pb2.Sampling(temperature=0.0)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LIMITS = Limits(connect=5, first_token=120, stall=60)
EOS = 2


async def chat(client: VllmClient, url: str, max_tokens: int, activity: Activity) -> tuple[list[int], list[int], str]:
    ids: list[int] = []
    request = ChatRequest("smollm2", json.dumps(QUESTION), "{}", max_tokens, GREEDY, request_id="test")
    answer = await client.chat(url, request, ids.extend, LIMITS, activity)
    return answer.prompt.tolist(), ids, answer.message.content


async def test_ids_go_in_and_come_out_and_a_partial_goes_on(vllm_server: VllmServer) -> None:
    activity, whole = Activity(), []
    async with VllmClient() as client:
        prompt, told, content = await chat(client, vllm_server.url, 64, activity)
        assert "Paris" in content
        ending = await client.complete(
            vllm_server.url, TokensRequest("smollm2", prompt, 64, GREEDY), whole.extend, LIMITS, activity
        )
        assert (ending.finish_reason, ending.stop_reason) == (pb.FINISH_REASON_STOP, "")
        assert whole == told
        assert whole[-1] == EOS
        rest: list[int] = []
        request = TokensRequest("smollm2", prompt + whole[:3], 61, GREEDY)
        await client.complete(vllm_server.url, request, rest.extend, LIMITS, activity)
        assert whole[:3] + rest == whole
        short: list[int] = []
        ending = await client.complete(
            vllm_server.url, TokensRequest("smollm2", prompt, 3, GREEDY), short.extend, LIMITS, activity
        )
        assert (ending.finish_reason, short) == (pb.FINISH_REASON_LENGTH, whole[:3])
        stopping = run_pb2.Sampling(temperature=0.0, stop_token_ids=[whole[2]])
        ending = await client.complete(
            vllm_server.url, TokensRequest("smollm2", prompt, 64, stopping), [].extend, LIMITS, activity
        )
        assert (ending.finish_reason, ending.stop_reason) == (pb.FINISH_REASON_STOP, str(whole[2]))
        ending = await client.extract(vllm_server.url, ExtractionRequest("smollm2", prompt, "k"), LIMITS, activity)
        assert ending.finish_reason == pb.FINISH_REASON_LENGTH


@pytest.mark.parametrize(
    ("model", "prompt", "max_tokens", "cause", "status"),
    [
        ("other", [1], 5, pb.CAUSE_CONFIGURATION, 404),
        ("smollm2", [1] * 2049, 5, pb.CAUSE_ITEM, 400),
        ("smollm2", [1] * 2048, 5, pb.CAUSE_ITEM, 400),
        ("smollm2", [1], 2049, pb.CAUSE_ITEM, 400),
        ("smollm2", [49152], 5, pb.CAUSE_ITEM, 400),
    ],
)
async def test_refusals(
    vllm_server: VllmServer, model: str, prompt: list[int], max_tokens: int, cause: pb.Cause.ValueType, status: int
) -> None:
    request = TokensRequest(model, prompt, max_tokens, GREEDY)
    async with VllmClient() as client:
        with pytest.raises(InterruptionError) as caught:
            await client.complete(vllm_server.url, request, [].extend, LIMITS, Activity())
    assert (caught.value.cause, caught.value.http_status) == (cause, status)


async def test_probe_and_metrics(vllm_server: VllmServer) -> None:
    async with VllmClient() as client:
        info = await client.probe(vllm_server.url)
        assert (info.models, info.context) == (("smollm2",), 2048)
        assert info.version.startswith("0.32")
        before = await client.scrape(vllm_server.url)
        await client.complete(vllm_server.url, TokensRequest("smollm2", [1], 5, GREEDY), [].extend, LIMITS, Activity())
        after = await client.scrape(vllm_server.url)
    assert after.generation_tokens > before.generation_tokens
    assert after.started_at == before.started_at > 1.7e9
    assert after.spec_decode is None
