"""Streams are read right however they are cut, and nothing but stop and length counts as done."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.vllm.stream import ChatReader, Splitter, StreamReader, TokenReader

PROMPT = [5, 6, 7]


def chunk(ids: list[int] | None, finish: str | None = None, stop: object = None, prompt: object = None) -> bytes:
    choice = {"index": 0, "text": "\u2028", "finish_reason": finish, "stop_reason": stop}
    return b"data: " + orjson.dumps({"choices": [choice | {"prompt_token_ids": prompt, "token_ids": ids}]}) + b"\n\n"


def first(ids: list[int], finish: str | None = None) -> bytes:
    return chunk(ids, finish, prompt=PROMPT)


DONE = b"data: [DONE]\n\n"


def read(reader: StreamReader, *pieces: bytes) -> list[int]:
    ids: list[int] = []
    for piece in pieces:
        if not reader.ended:
            ids += reader.feed(piece)
    return ids


def cause(reader: StreamReader) -> pb.Cause.ValueType:
    assert reader.interruption is not None
    return reader.interruption.cause


@given(st.lists(st.integers(1, 40), max_size=30), st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=3), min_size=1))
def test_any_cut_of_the_bytes_reads_the_same(cuts: list[int], deltas: list[list[int]]) -> None:
    data = b": keep-alive\n\n" + first(deltas[0]) + b"".join(map(chunk, deltas[1:])) + chunk([], "stop") + DONE
    reader, ids, start = TokenReader(PROMPT), [], 0
    for end in [*(sum(cuts[: index + 1]) for index in range(len(cuts))), len(data)]:
        ids += read(reader, data[start:end])
        start = max(start, min(end, len(data)))
    assert ids == [token for delta in deltas for token in delta]
    assert reader.finish_reason == pb.FINISH_REASON_STOP
    assert reader.progress == len(ids)


def test_lines_may_end_as_on_windows_and_have_no_space() -> None:
    assert Splitter().feed(b'data:{"a":1}\r\n\r\nevent: x\r\ndata: 2\r\n') == [b'{"a":1}', b"2"]


@pytest.mark.parametrize(("reason", "expected"), [("stop", pb.FINISH_REASON_STOP), ("length", pb.FINISH_REASON_LENGTH)])
def test_done(reason: str, expected: pb.FinishReason.ValueType) -> None:
    reader = TokenReader(PROMPT)
    assert read(reader, first([1]), chunk([2], reason)) == [1, 2]
    assert (reader.finish_reason, reader.interruption, reader.stop_reason) == (expected, None, "")


def test_a_stop_id_is_the_stop_reason() -> None:
    reader = TokenReader(PROMPT)
    read(reader, first([1]), chunk([163586], "stop", 163586))
    assert reader.stop_reason == "163586"


@pytest.mark.parametrize("reason", ["abort", "repetition", "content_filter", 7])
def test_another_finish_reason_is_an_interruption(reason: str) -> None:
    reader = TokenReader(PROMPT)
    assert read(reader, first([1]), chunk([2], reason), DONE) == [1, 2]
    assert cause(reader) == pb.CAUSE_STREAM
    assert reader.finish_reason == pb.FINISH_REASON_UNSPECIFIED


@pytest.mark.parametrize(
    "data", [DONE, first([1]) + DONE, first([1]) + b'data: {"choices": [], "usage": {}}\n\n' + DONE]
)
def test_done_alone_proves_nothing(data: bytes) -> None:
    reader = TokenReader(PROMPT)
    read(reader, data)
    assert cause(reader) == pb.CAUSE_STREAM


def test_a_stream_that_only_ends() -> None:
    reader = TokenReader(PROMPT)
    read(reader, first([1]))
    reader.close("the stream ends")
    assert cause(reader) == pb.CAUSE_STREAM


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (500, pb.CAUSE_STREAM),
        (503, pb.CAUSE_STREAM),
        (400, pb.CAUSE_ITEM),
        (404, pb.CAUSE_CONFIGURATION),
        (None, pb.CAUSE_STREAM),
    ],
)
def test_an_error_event_keeps_the_ids_before_it(code: int | None, expected: pb.Cause.ValueType) -> None:
    error = {"error": {"message": "engine\ndied", "code": code}}
    reader = TokenReader(PROMPT)
    assert read(reader, first([1]) + chunk([2]) + b"data: " + orjson.dumps(error) + b"\n\n" + DONE) == [1, 2]
    assert cause(reader) == expected
    assert reader.interruption is not None
    assert reader.interruption.http_status == (code or 0)
    assert reader.interruption.detail.endswith("engine died")


@pytest.mark.parametrize(
    "data",
    [
        b"data: {\n\n",
        b"data: []\n\n",
        b"data: 5\n\n",
        b"data: {}\n\n",
        b'data: {"choices": 5}\n\n',
        b'data: {"choices": [5]}\n\n',
        b'data: {"choices": [{"token_ids": [1]}]}\n\n',
        first([1]) + chunk(None),
        first([1]) + b'data: {"choices": [{"token_ids": ["a"]}]}\n\n',
        first([1]) + b'data: {"choices": [{"token_ids": [-1]}]}\n\n',
        first([1]) + b'data: {"choices": [{"token_ids": [4294967296]}]}\n\n',
        first([1]) + b'data: {"choices": [{"token_ids": 3}]}\n\n',
        chunk([1], prompt=[5, 6, 8]),
        chunk([1]),
    ],
)
def test_what_breaks_the_protocol(data: bytes) -> None:
    reader = TokenReader(PROMPT)
    read(reader, data)
    assert cause(reader) == pb.CAUSE_PROTOCOL


def test_a_whole_body_reads_like_one_event() -> None:
    reader = TokenReader(PROMPT)
    assert reader.whole(first([9], "length")[6:]).tolist() == [9]
    assert reader.finish_reason == pb.FINISH_REASON_LENGTH
    for body in (first([9])[6:], first([9], "abort")[6:]):
        reader = TokenReader(PROMPT)
        reader.whole(body)
        assert cause(reader) == pb.CAUSE_STREAM


def delta(finish: str | None = None, ids: list[int] | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": finish, "token_ids": ids}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_chat_reads_reasoning_under_both_names(name: str) -> None:
    reader = ChatReader()
    read(reader, delta(role="assistant", content=""))
    assert reader.progress == 0
    read(reader, delta(**{name: "so "}), delta(**{name: "it is"}), delta(content="Paris"), delta("stop"), DONE)
    message = reader.text.message()
    assert (message.reasoning, message.content, message.tool_calls) == ("so it is", "Paris", "")
    assert reader.progress == 3
    assert reader.finish_reason == pb.FINISH_REASON_STOP


def test_chat_takes_ids_where_they_are_given() -> None:
    reader = ChatReader()
    opening = {"prompt_token_ids": PROMPT, "choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]}
    ids = read(reader, b"data: " + orjson.dumps(opening) + b"\n\n", delta(ids=[1, 2], content="a"), delta("stop", [3]))
    assert ids == [1, 2, 3]
    assert reader.prompt.tolist() == PROMPT
    assert reader.progress == 3


def test_chat_puts_tool_calls_together() -> None:
    reader = ChatReader()
    pieces = [
        [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a"'}}],
        [{"index": 0, "function": {"arguments": ": 1}"}}, {"index": 1, "id": "c2", "function": {"name": "g"}}],
    ]
    read(reader, *(delta(tool_calls=piece) for piece in pieces), delta("stop"))
    assert orjson.loads(reader.text.message().tool_calls) == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
    ]
