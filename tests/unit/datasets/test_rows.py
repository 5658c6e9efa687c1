"""Rows of every form, and why a row cannot be used."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.datasets.rows import UnusableRowError, canonical, questions, sample_id


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


SHAREGPT = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "Why?"},
    {"from": "gpt", "value": "Because."},
    {"from": "human", "value": "And then?"},
    {"from": "gpt", "value": "Nothing."},
]


@pytest.mark.parametrize(
    ("row", "first", "every"),
    [
        (
            {"conversations": SHAREGPT},
            [system("Be brief."), user("Why?")],
            [system("Be brief."), user("Why?"), user("And then?")],
        ),
        ({"conversations": [{"role": "user", "content": "Why?"}]}, [user("Why?")], [user("Why?")]),
        (
            {"messages": [user("Why?"), {"role": "assistant", "content": None}, user("How?")]},
            [user("Why?")],
            [user("Why?"), user("How?")],
        ),
        (
            {"messages": [{"role": "developer", "content": "D"}, system("S"), user("Q")]},
            [system("D\n\nS"), user("Q")],
            None,
        ),
        ({"messages": [{"role": "assistant", "content": "Hello!"}, user("Q")]}, [user("Q")], None),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]}, [user("a\nb")], None),
        ({"messages": [system("  "), user(" \n"), user("Q")]}, [user("Q")], None),
        ({"messages": None, "prompt": "Q"}, [user("Q")], None),
        ({"turns": ["one", "two"]}, [user("one")], [user("one"), user("two")]),
        ({"prompt": " Q \u2028"}, [user(" Q \u2028")], None),
        ({"prompt": [user("Q")]}, [user("Q")], None),
        ({"question": "Q", "answer": "A"}, [user("Q")], None),
        ({"instruction": "Sum up.", "input": "Text.", "output": "T"}, [user("Sum up.\n\nText.")], None),
        ({"instruction": "Sing.", "input": ""}, [user("Sing.")], None),
        ({"prompt": "Q", "image": None, "images": []}, [user("Q")], None),
    ],
)
def test_forms(row: dict[str, Any], first: list[dict[str, str]], every: list[dict[str, str]] | None):
    assert questions(row, "first") == first
    assert questions(row, "all") == (first if every is None else every)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([], "wrong_type"),
        ("text", "wrong_type"),
        (None, "wrong_type"),
        ({}, "unknown_form"),
        ({"text": "x"}, "unknown_form"),
        ({"messages": None}, "unknown_form"),
        ({"conversations": "Why?"}, "wrong_type"),
        ({"conversations": {"from": ["human"], "value": ["Why?"]}}, "wrong_type"),
        ({"turns": "Why?"}, "wrong_type"),
        ({"turns": [1]}, "wrong_type"),
        ({"prompt": 3}, "wrong_type"),
        ({"messages": ["Why?"]}, "wrong_type"),
        ({"messages": [{"role": "user", "content": 3}]}, "wrong_type"),
        ({"messages": [{"role": "user", "content": None}]}, "wrong_type"),
        ({"messages": [{"role": "user"}]}, "wrong_type"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "wrong_type"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "unknown_role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "unknown_role"),
        ({"messages": [{"content": "x"}]}, "unknown_role"),
        ({"messages": []}, "empty"),
        ({"prompt": " \n"}, "empty"),
        ({"messages": [system("S")]}, "no_user_text"),
        ({"messages": [user(" ")]}, "no_user_text"),
        ({"messages": [{"role": "user", "content": []}]}, "no_user_text"),
        ({"turns": [""]}, "no_user_text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "input_image"}]}]}, "image"),
        ({"image": "cat.png", "conversations": SHAREGPT}, "image"),
        ({"images": [b"x"], "prompt": "Q"}, "image"),
    ],
)
def test_reasons(row: Any, reason: str):
    for turns in ("first", "all"):
        with pytest.raises(UnusableRowError) as caught:
            questions(row, turns)
        assert caught.value.reason == reason


def test_what_follows_the_first_question_does_not_matter_to_it():
    row = {"messages": [user("Q"), {"role": "user", "content": [{"type": "image"}]}, system("late"), 3]}
    assert questions(row, "first") == [user("Q")]
    for until, reason in ((2, "image"), (4, "image")):
        with pytest.raises(UnusableRowError) as caught:
            questions({"messages": row["messages"][:until]}, "all")
        assert caught.value.reason == reason


def test_system_text_between_the_turns_is_refused():
    with pytest.raises(UnusableRowError) as caught:
        questions({"messages": [user("Q"), system("Now in French."), user("R")]}, "all")
    assert (caught.value.reason, caught.value.detail) == ("late_system", "Now in French.")


def test_details_are_short_and_of_one_line():
    with pytest.raises(UnusableRowError) as caught:
        questions({"messages": [{"role": "x\n" * 1000, "content": ""}]}, "first")
    assert len(caught.value.detail) == 200
    assert "\n" not in caught.value.detail


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["from", "value", "role", "content", "type", "text", "human"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
rows = json_values | st.dictionaries(
    st.sampled_from(["conversations", "messages", "turns", "prompt", "instruction", "input", "image"]), json_values
)


@settings(max_examples=60, deadline=None)
@given(row=rows, turns=st.sampled_from(["first", "all"]))
def test_any_json_gives_messages_or_a_reason(row: Any, turns: Any):
    try:
        messages = questions(row, turns)
    except UnusableRowError as error:
        assert error.reason  # noqa: PT017
        return
    roles = [message["role"] for message in messages]
    assert roles == ["system"] * ("system" in roles) + ["user"] * roles.count("user")
    assert roles.count("user") >= 1
    assert turns == "all" or roles.count("user") == 1
    assert all(message["content"].strip() for message in messages)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_ids_are_those_that_the_standard_library_computes(texts: list[str]):
    messages: Any = [user(text) for text in texts]
    plain = json.dumps(messages, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert canonical(messages) == plain
    assert sample_id(messages) == hashlib.sha256(plain).hexdigest()
