import json

import pytest

from eyas.errors import InputError
from eyas.tokenizer import model
from eyas.tokenizer.parse import opened
from eyas.tokenizer.render import render

HELLO = json.dumps([{"role": "user", "content": "hé"}])


@pytest.fixture(scope="module")
def loaded(folder):
    return model.load(str(folder), False)


def test_the_prompt_ends_in_the_generation_prompt(loaded):
    ids = render(loaded.tokenizer, HELLO, "")
    assert loaded.tokenizer.decode(ids) == "<|user|>hé<|end|><|assistant|>"


def test_arguments_reach_the_template(loaded):
    assert not opened(render(loaded.tokenizer, HELLO, '{"thinking": false}'), loaded.markers)
    assert opened(render(loaded.tokenizer, HELLO, '{"thinking": true}'), loaded.markers)


def test_a_rejected_conversation_carries_the_sentence_of_the_template(loaded):
    with pytest.raises(InputError, match="Only user and assistant roles are supported!"):
        render(loaded.tokenizer, json.dumps([{"role": "tool", "content": "x"}]), "")


@pytest.mark.parametrize("messages", ["", "{}", "[]", "[1]", '[{"role": "user"}]', '[{"role": 1, "content": "x"}]'])
def test_what_is_no_conversation_is_refused(loaded, messages):
    with pytest.raises(InputError, match="message"):
        render(loaded.tokenizer, messages, "")


@pytest.mark.parametrize("arguments", ["{", "[]", '{"tokenize": false}', '{"add_generation_prompt": false}'])
def test_arguments_that_cannot_be_used_name_the_setting(loaded, arguments):
    with pytest.raises(InputError, match="chatTemplateKwargs"):
        render(loaded.tokenizer, HELLO, arguments)
