import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.tokenizer.parse import Markers, opened, parse, split, tool_calls

START, END, EOS = 1000, 1001, 1002
THINKS = Markers(START, END, frozenset({EOS}))
PLAIN = Markers(None, None, frozenset({EOS}))

text_ids = st.lists(st.integers(32, 99), max_size=20)
any_ids = st.lists(st.sampled_from([65, 66, 67, START, END, EOS]), max_size=30)


def decode(ids):
    return "".join(map(chr, ids))


def ids_of(text):
    return list(map(ord, text))


def answer(ids, prompt=(), markers=THINKS):
    return parse(ids, prompt, markers, decode)


@given(any_ids, st.booleans())
def test_every_id_that_is_no_marker_is_kept_once_and_in_order(ids, inside):
    reasoning, content = split(ids, inside, THINKS)
    plain = [index for index in ids if index not in (START, END)]
    assert sorted(reasoning + content) == sorted(plain)
    for part in (reasoning, content):
        rest = iter(plain)
        assert all(index in rest for index in part)


@given(text_ids, text_ids)
def test_a_section_is_the_same_wherever_it_was_opened(reasoning, content):
    closed = [*reasoning, END, *content]
    expected = reasoning, content
    assert split([START, *closed], False, THINKS) == expected
    assert split(closed, True, THINKS) == expected
    assert split(closed, False, THINKS) == expected


@given(text_ids, st.booleans())
def test_cut_inside_reasoning_is_all_reasoning(reasoning, in_prompt):
    ids, prompt = (reasoning, [1, START]) if in_prompt else ([START, *reasoning], [1])
    result = answer(ids, prompt)
    assert result.reasoning == decode(reasoning).strip()
    assert result.content == ""


@given(text_ids, st.lists(st.integers(0, 99), max_size=5))
def test_without_reasoning_the_content_is_exactly_the_text(content, prompt):
    result = answer([*content, EOS], prompt, PLAIN)
    if "<tool_call>" not in decode(content):
        assert (result.reasoning, result.content) == ("", decode(content))


@given(any_ids, any_ids)
def test_any_ids_are_parsed_and_no_special_id_is_shown(ids, prompt):
    result = answer(ids, prompt)
    assert chr(EOS) not in result.reasoning + result.content


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [([], False), ([1, 2], False), ([1, START], True), ([START, 5, 6], True), ([START, 5, END, 6], False)],
)
def test_an_open_section_is_seen_in_the_prompt(prompt, inside):
    assert opened(prompt, THINKS) is inside
    assert opened(prompt, PLAIN) is False


def test_whitespace_between_reasoning_and_content_belongs_to_neither():
    result = answer([START, *ids_of("\nhm\n"), END, *ids_of("\n\nyes \n"), EOS])
    assert (result.reasoning, result.content) == ("hm", "yes \n")


def test_the_second_of_two_sections_is_reasoning_too():
    result = answer([START, *ids_of("a"), END, *ids_of("b"), START, *ids_of("c"), END, *ids_of("d")])
    assert (result.reasoning, result.content) == ("ac", "bd")


def test_tool_calls_are_taken_out():
    content = (
        'I look.\n<tool_call>\n{"name": "find", "arguments": {"q": "é}"}}\n</tool_call>\n<tool_call>{"name": "go"}'
        "</tool_call>"
    )
    rest, calls = tool_calls(content)
    assert rest == "I look."
    assert [call["function"]["name"] for call in calls] == ["find", "go"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"q": "é}"}
    assert calls[1] == {"type": "function", "function": {"name": "go", "arguments": "{}"}}


@pytest.mark.parametrize(
    "content",
    ['<tool_call>{"name": "cut', "<tool_call>{not json}</tool_call>", '<tool_call>{"arguments": {}}</tool_call>', "{}"],
)
def test_what_is_no_tool_call_stays_in_the_content(content):
    assert tool_calls(content) == (content, [])


def test_tool_calls_of_an_answer_are_json():
    result = answer(ids_of('<tool_call>{"name": "go"}</tool_call>'), markers=PLAIN)
    assert result.content == ""
    assert json.loads(result.tool_calls)[0]["function"]["name"] == "go"
