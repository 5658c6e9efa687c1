import json
import shutil

import pytest

from eyas.errors import InputError
from eyas.tokenizer import model
from eyas.tokenizer.parse import parse
from eyas.tokenizer.render import render


@pytest.fixture
def changed(folder, tmp_path):
    """A copy of the folder, to be changed."""
    return shutil.copytree(folder, tmp_path / "copy")


def test_facts_are_read_from_a_nested_config_of_an_unknown_model(folder):
    loaded = model.load(str(folder), False)
    assert (loaded.vocab_size, loaded.num_layers, loaded.hidden_size) == (300, 4, 64)
    assert (loaded.context, loaded.dtype) == (2048, "bfloat16")


def test_the_ids_that_end_an_answer_are_those_of_vllm(folder, changed):
    assert model.load(str(folder), False).eos_token_ids == (256, 259)
    (changed / "generation_config.json").unlink()
    assert model.load(str(changed), False).eos_token_ids == (7, 256)


def test_markers_are_found_in_the_vocabulary(folder):
    markers = model.load(str(folder), False).markers
    assert (markers.reasoning_start, markers.reasoning_end) == (260, 261)
    assert markers.special == {256, 257, 258, 259}


def test_the_hash_covers_tokenizer_and_template_and_nothing_else(folder, changed):
    first = model.load(str(folder), False).hash
    assert model.load(str(changed), False).hash == first
    (changed / "README.md").write_text("other")
    assert model.load(str(changed), False).hash == first
    template = changed / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert model.load(str(changed), False).hash != first


def test_a_folder_without_tokenizer_is_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(InputError, match=r"no tokenizer can be loaded from .* give the folder that vLLM serves"):
        model.load(str(tmp_path), False)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="give the folder that vLLM serves"):
        model.load(str(tmp_path / "missing"), False)


def test_a_tokenizer_without_template_is_refused(changed):
    (changed / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match="no chat template: add chat_template"):
        model.load(str(changed), False)


def test_code_of_the_model_runs_only_when_it_is_trusted(changed):
    config = json.loads((changed / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (changed / "tokenizer_config.json").write_text(json.dumps(config))
    (changed / "own.py").write_text(
        "from transformers import PreTrainedTokenizerFast\nclass Own(PreTrainedTokenizerFast):\n    pass\n"
    )
    with pytest.raises(InputError, match="EYAS_TRUST_REMOTE_CODE"):
        model.load(str(changed), False)
    assert type(model.load(str(changed), True).tokenizer).__name__ == "Own"


TIKTOKEN = """
import tiktoken
from transformers import PreTrainedTokenizer

class Own(PreTrainedTokenizer):
    def __init__(self, **kwargs):
        ranks = {bytes([index]): index for index in range(256)}
        self.model = tiktoken.Encoding("own", pat_str="(?s:.)", mergeable_ranks=ranks, special_tokens={})
        super().__init__(**kwargs)

    @property
    def vocab_size(self):
        return 256

    def get_vocab(self):
        return {chr(index): index for index in range(256)} | self.added_tokens_encoder

    def _tokenize(self, text, **kwargs):
        return [chr(index) for index in self.model.encode(text)]

    def _convert_token_to_id(self, token):
        return ord(token)

    def _convert_id_to_token(self, index):
        return chr(index)

    def convert_tokens_to_string(self, tokens):
        return bytes(map(ord, tokens)).decode(errors="replace")
"""


def test_a_slow_tiktoken_tokenizer_renders_and_parses(folder, tmp_path):
    template = (folder / "chat_template.jinja").read_text()
    special = {str(256): {"content": "<|end|>", "special": True}, str(257): {"content": "<think>", "special": False}}
    special |= {str(258): {"content": "</think>", "special": False}}
    config = {
        "auto_map": {"AutoTokenizer": ["own.Own", None]},
        "tokenizer_class": "Own",
        "added_tokens_decoder": special,
        "eos_token": "<|end|>",
        "chat_template": template,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(TIKTOKEN)
    loaded = model.load(str(tmp_path), True)
    ids = render(loaded.tokenizer, json.dumps([{"role": "user", "content": "hé"}]), '{"thinking": true}')
    assert bytes(ids[8:11]) == "hé".encode()
    assert ids[11] == 256
    assert ids[-1] == 257

    def decode(part):
        return loaded.tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    answer = parse([*b"hm", 258, *"ça va".encode(), 256], ids, loaded.markers, decode)
    assert (answer.reasoning, answer.content) == ("hm", "ça va")
