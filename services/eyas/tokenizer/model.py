"""A model's tokenizer and configuration files, loaded once, and what they say about the model."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.utils.hub import cached_file

from eyas.errors import InputError
from eyas.tokenizer import parse

_TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)
_LANGUAGE_MODEL = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True)
class Model:
    """A tokenizer, and facts of its model. Counts are 0 and names empty when the model does not say."""

    uri: str
    tokenizer: Any
    """Of transformers, fast or slow."""
    vocab_size: int
    """Ids of the output layer: padding included, so at least the tokenizer's own."""
    eos_token_ids: tuple[int, ...]
    """Ids that end an answer, as vLLM takes them: the tokenizer's and generation_config's, ascending."""
    context: int
    """Tokens."""
    hash: str
    """SHA-256, hex, over the tokenizer's files and the chat template."""
    markers: parse.Markers
    num_layers: int
    hidden_size: int
    dtype: str


def load(uri: str, trust_remote_code: bool) -> Model:
    """Reads a folder or repository. Raises InputError when it holds no tokenizer, or one without chat template."""
    config = _json(uri, "config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(uri, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError) as error:
        remedy = (
            "its tokenizer is Python code of its own: set EYAS_TRUST_REMOTE_CODE=true if you trust it"
            if "trust_remote_code" in str(error)
            else f"give the folder that vLLM serves, with tokenizer and config.json ({_line(error)})"
        )
        raise InputError(f"no tokenizer can be loaded from {uri}: {remedy}") from error
    if not tokenizer.chat_template:
        raise InputError(f"the tokenizer in {uri} has no chat template: add chat_template.jinja to the model's folder")
    return Model(
        uri=uri,
        tokenizer=tokenizer,
        vocab_size=_number(config, "vocab_size", "padded_vocab_size") or len(tokenizer),
        eos_token_ids=_eos(tokenizer, _json(uri, "generation_config.json") or config),
        context=_number(config, "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"),
        hash=_hash(uri, tokenizer.chat_template),
        markers=markers(tokenizer),
        num_layers=_number(config, "num_hidden_layers", "n_layer", "num_layers"),
        hidden_size=_number(config, "hidden_size", "n_embd", "d_model"),
        dtype=str(_value(config, "dtype", "torch_dtype") or ""),
    )


def markers(tokenizer: Any) -> parse.Markers:
    """The ids that mean structure in an answer, found in the vocabulary."""
    vocabulary = tokenizer.get_vocab()
    pairs = [pair for pair in parse.REASONING if pair[0] in vocabulary and pair[1] in vocabulary]
    start, end = (vocabulary[text] for text in pairs[0]) if pairs else (None, None)
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    tools = {vocabulary[text] for text in parse.TOOL_CALL if text in vocabulary}
    return parse.Markers(start, end, frozenset((special | set(tokenizer.all_special_ids)) - tools))


def _eos(tokenizer: Any, config: Mapping[str, Any]) -> tuple[int, ...]:
    given = _value(config, "eos_token_id")
    ids = {int(index) for index in (given if isinstance(given, list) else [given]) if index is not None}
    if tokenizer.eos_token_id is not None:
        ids.add(int(tokenizer.eos_token_id))
    return tuple(sorted(ids))


def _hash(uri: str, template: Any) -> str:
    digest = hashlib.sha256()
    for name, path in _files(uri, _TOKENIZER_FILES):
        digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    digest.update(json.dumps(template, sort_keys=True).encode())
    return digest.hexdigest()


def _json(uri: str, name: str) -> dict[str, Any]:
    for _, path in _files(uri, [name]):
        try:
            value = json.loads(path.read_bytes())
        except ValueError as error:
            raise InputError(f"{path} is not JSON: copy the model's folder again") from error
        return value if isinstance(value, dict) else {}
    return {}


def _files(uri: str, names: Iterable[str]) -> Iterable[tuple[str, Path]]:
    for name in names:
        try:
            path = cached_file(
                uri, name, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
            )
        except OSError as error:
            raise InputError(f"no model is at {uri}: give the folder that vLLM serves ({_line(error)})") from error
        if path is not None:
            yield name, Path(path)


def _value(config: Mapping[str, Any], *names: str) -> Any:
    """The first value there is: of the language model inside a multimodal config, else of the config itself."""
    inner = [config[part] for part in _LANGUAGE_MODEL if isinstance(config.get(part), dict)]
    return next((part[name] for part in (*inner, config) for name in names if part.get(name) is not None), None)


def _number(config: Mapping[str, Any], *names: str) -> int:
    return int(_value(config, *names) or 0)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
