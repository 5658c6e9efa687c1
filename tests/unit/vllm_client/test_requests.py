"""Everything that draws tokens is in every body."""

import orjson

from eyas.run.v1 import run_pb2
from eyas.vllm.requests import ChatRequest, ExtractionRequest, TokensRequest

NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "stop_token_ids": [],
}


def test_tokens() -> None:
    sampling = run_pb2.Sampling(temperature=0.0, top_p=0.9, stop_token_ids=[7])
    assert TokensRequest("m", [1, 2], 16, sampling).body() == {
        **NEUTRAL,
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 16,
        "stream": True,
        "return_token_ids": True,
        "temperature": 0.0,
        "top_p": 0.9,
        "stop_token_ids": [7],
    }
    assert TokensRequest("m", [1], 1, sampling, priority=3).body()["priority"] == 3


def test_chat_sends_what_cannot_continue_only_when_asked() -> None:
    plain = ChatRequest("m", '[{"role":"user"}]', "{}", 5, run_pb2.Sampling())
    body = orjson.loads(orjson.dumps(plain.body()))
    assert body == {
        **NEUTRAL,
        "model": "m",
        "messages": [{"role": "user"}],
        "max_tokens": 5,
        "stream": True,
        "return_token_ids": True,
    }
    sampling = run_pb2.Sampling(presence_penalty=0.5, frequency_penalty=0.0, stop=["x"])
    body = orjson.loads(orjson.dumps(ChatRequest("m", "[]", '{"thinking":true}', 5, sampling).body()))
    assert body["presence_penalty"] == 0.5
    assert body["frequency_penalty"] == 0.0
    assert body["stop"] == ["x"]
    assert body["chat_template_kwargs"] == {"thinking": True}


def test_extraction_is_one_token_and_not_streamed() -> None:
    body = ExtractionRequest("m", [1, 2, 3], "r/k").body()
    assert (body["max_tokens"], body["stream"]) == (1, False)
    assert body["kv_transfer_params"] == {"eyas_key": "r/k", "eyas_rows": 3}
