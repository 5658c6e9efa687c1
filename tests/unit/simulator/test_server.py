"""The simulator on the wire: vLLM's shapes, defaults, clamps, refusals, and the faults on order."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest

from eyas.simulator.faults import HEADER
from eyas.simulator.model import SimulatedModel
from eyas.simulator.server import serve
from eyas.simulator.settings import SimulatorSettings

MODEL = SimulatedModel(median_tokens=40, sigma=0.0, vocab_size=1000)
PROMPT = MODEL.render([{"role": "user", "content": "hi"}])
IDS = {"model": "simulated", "prompt": PROMPT, "return_token_ids": True}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    settings = SimulatorSettings(
        listen="127.0.0.1:0", median_tokens=40, sigma=0.0, tokens_per_second=0, context=200, vocab_size=1000
    )
    async with serve(settings) as url, aiohttp.ClientSession(url) as session:
        yield session


async def ask(http: aiohttp.ClientSession, path: str = "/v1/completions", **body: Any) -> tuple[int, Any]:
    async with http.post(path, json=IDS | body) as response:
        return response.status, await response.json()


async def stream(http: aiohttp.ClientSession, fault: str = "", path: str = "/v1/completions", **body: Any) -> list[Any]:
    headers = {HEADER: fault} if fault else {}
    async with http.post(path, json=IDS | {"stream": True, "max_tokens": 100} | body, headers=headers) as response:
        assert response.status == 200
        events = (await response.read()).decode().split("\n\n")
    assert events.pop() == ""
    return [event.removeprefix("data: ") for event in events]


def ids_of(events: list[str]) -> list[int]:
    choices = [orjson.loads(event)["choices"][0] for event in events if event.startswith('{"id"')]
    return [token for choice in choices for token in choice["token_ids"] or ()]


async def test_a_stream(http: aiohttp.ClientSession) -> None:
    *events, done = await stream(http)
    assert done == "[DONE]"
    assert ids_of(events) == MODEL.answer(PROMPT, 100)
    first, last = orjson.loads(events[0]), orjson.loads(events[-1])
    assert set(first) == {"id", "object", "created", "model", "choices"}
    assert set(first["choices"][0]) == {
        *("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids")
    }
    assert first["choices"][0]["prompt_token_ids"] == PROMPT
    assert last["choices"][0]["prompt_token_ids"] is None
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]) == ("stop", None)


async def test_ids_are_only_given_when_asked(http: aiohttp.ClientSession) -> None:
    *events, _ = await stream(http, return_token_ids=False)
    assert ids_of(events) == []
    assert orjson.loads(events[0])["choices"][0]["prompt_token_ids"] is None


async def test_a_whole_answer_and_the_default_of_max_tokens(http: aiohttp.ClientSession) -> None:
    status, body = await ask(http)
    choice = body["choices"][0]
    assert (status, choice["finish_reason"]) == (200, "length")
    assert choice["token_ids"] == MODEL.answer(PROMPT, 16)
    assert choice["prompt_token_ids"] == PROMPT
    assert body["usage"]["completion_tokens"] == 16
    assert body["kv_transfer_params"] is None


async def test_stop_ids(http: aiohttp.ClientSession) -> None:
    stop = MODEL.answer(PROMPT, 100)[7]
    _, body = await ask(http, stop_token_ids=[stop], max_tokens=100)
    choice = body["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert choice["token_ids"][-1] == stop


async def test_the_context_clamps_silently(http: aiohttp.ClientSession) -> None:
    prompt = [600] * 190
    _, body = await ask(http, prompt=prompt, max_tokens=100)
    assert len(body["choices"][0]["token_ids"]) == 10
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("change", "status", "kind", "param"),
    [
        ({"prompt": [600] * 201}, 400, "BadRequestError", "input_tokens"),
        ({"prompt": [600] * 200}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": 201}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ({"prompt": ["a"]}, 400, "Bad Request", "body.prompt"),
        ({"prompt": []}, 400, "Bad Request", "body.prompt"),
        ({"prompt": [1000]}, 400, "BadRequestError", None),
        ({"model": "other"}, 404, "NotFoundError", "model"),
    ],
)
async def test_refusals(
    http: aiohttp.ClientSession, change: dict[str, Any], status: int, kind: str, param: str | None
) -> None:
    answered, body = await ask(http, **change)
    error = body["error"]
    assert (answered, error["code"], error["type"], error["param"]) == (status, status, kind, param)


async def test_an_id_outside_the_vocabulary_is_found_in_the_stream(http: aiohttp.ClientSession) -> None:
    event, done = await stream(http, prompt=[1000])
    assert orjson.loads(event)["error"]["code"] == 400
    assert done == "[DONE]"


async def test_chat(http: aiohttp.ClientSession) -> None:
    messages = [{"role": "user", "content": "hi"}]
    *events, done = await stream(http, path="/v1/chat/completions", messages=messages)
    assert done == "[DONE]"
    opening = orjson.loads(events[0])
    assert opening["prompt_token_ids"] == PROMPT
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [orjson.loads(event)["choices"][0] for event in events[1:]]
    assert "".join(choice["delta"]["content"] for choice in deltas) == MODEL.text(MODEL.answer(PROMPT, 100))
    assert [token for choice in deltas for token in choice["token_ids"]] == MODEL.answer(PROMPT, 100)
    _, body = await ask(http, "/v1/chat/completions", messages=messages)
    assert body["choices"][0]["message"]["content"] == MODEL.text(MODEL.answer(PROMPT, 100))


async def test_models_tokenize_health_and_version(http: aiohttp.ClientSession) -> None:
    assert (await http.get("/health")).status == 200
    assert await (await http.get("/version")).json() == {"version": "0.32.0"}
    card = (await (await http.get("/v1/models")).json())["data"][0]
    assert (card["id"], card["max_model_len"]) == ("simulated", 200)
    messages = {"messages": [{"role": "user", "content": "hi"}]}
    assert (await (await http.post("/tokenize", json=messages)).json())["tokens"] == PROMPT


@pytest.mark.parametrize(
    ("fault", "last"),
    [("end:5", None), ("done:5", "[DONE]"), ("abort:5", "[DONE]"), ("error:5:500", "[DONE]"), ("garbage:5", "{")],
)
async def test_faults_in_a_stream(http: aiohttp.ClientSession, fault: str, last: str | None) -> None:
    events = await stream(http, fault)
    assert ids_of([event for event in events if '"token_ids"' in event]) == MODEL.answer(PROMPT, 5)
    assert last is None or events[-1].startswith(last)
    text = "".join(events)
    assert ('"finish_reason":"abort"' in text) == (fault == "abort:5")
    assert ('"code":500' in text) == (fault == "error:5:500")
    assert '"finish_reason":"stop"' not in text


async def test_a_cut_and_a_status(http: aiohttp.ClientSession) -> None:
    with pytest.raises(aiohttp.ClientError):
        await stream(http, "cut:5")
    async with http.post("/v1/completions", json=IDS, headers={HEADER: "status:0:429"}) as response:
        assert response.status == 429


async def test_the_key_is_asked_for() -> None:
    settings = SimulatorSettings(listen="127.0.0.1:0", api_key="secret")
    async with serve(settings) as url, aiohttp.ClientSession(url) as http:
        assert (await http.get("/v1/models")).status == 401
        assert (await http.get("/health")).status == 200
        assert (await http.get("/v1/models", headers={"Authorization": "Bearer secret"})).status == 200
