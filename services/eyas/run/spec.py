"""`RunSpec` as people write it: YAML and dotted overrides in, canonical JSON out.

Names are the proto's in lowerCamelCase; enum values are written short (`offline` for `HIDDEN_STATES_MODE_OFFLINE`).
A spec is complete once `complete` filled its defaults; only complete specs are stored.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from eyas.errors import InputError
from eyas.run.v1 import run_pb2 as pb

DEFAULTS: Mapping[str, Any] = {
    "dataset": {"turns": "first", "maxSamples": 0, "holdout": 0},
    "generation": {
        "protocol": "tokens",
        "maxTokens": 8192,
        "concurrency": 64,
        "sampling": {"temperature": 1.0, "topP": 1.0, "topK": 0, "minP": 0.0, "repetitionPenalty": 1.0},
        "chatTemplateKwargs": "{}",
        "priority": 0,
    },
    "timeouts": {"connect": 10.0, "firstToken": 600.0, "stall": 120.0, "total": 0.0},
    "hiddenStates": {"mode": "offline", "backend": "vllm", "concurrency": 16, "maxTokens": 0},
    "training": {
        "tttSteps": 7,
        "tttStepLossDecay": 0.8,
        "totalSeqLen": 4096,
        "epochs": 1.0,
        "lr": 1e-4,
        "warmupRatio": 0.015,
        "fromPretrained": "",
        "draftVocabSize": 32000,
        "seed": 0,
        "checkpointSeconds": 600.0,
        "batchSize": 1,
        "maxGradNorm": 0.5,
        "dtype": "bfloat16",
        "fcNorm": False,
        "normOutput": False,
        "weightDecay": 0.0,
        "intermediateSize": 0,
        "maxSeconds": 0.0,
    },
    "evaluation": {
        "numSpeculativeTokens": 3,
        "maxPrompts": 80,
        "maxTokens": 256,
        "concurrency": 8,
        "drafters": ["none", "untrained", "ngram", "trained"],
        "temperature": 0.0,
    },
    "thresholds": {
        "attemptsWarn": 0.01,
        "attemptsAlert": 0.05,
        "givenUpPause": 0.05,
        "minimumVolume": 100,
        "maxAttempts": 5,
    },
    "vllm": {"dtype": "auto", "maxModelLen": 0, "startSeconds": 3600.0},
}
"""Every setting that has a default, as it is written in a run.yaml."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_RESTART_ONLY = ("presencePenalty", "frequencyPenalty", "stop")


def parse(text: str, source: str) -> dict[str, Any]:
    """Reads a run.yaml (or JSON) into a mapping. `source` names it in errors."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{source} is not YAML: {' '.join(str(error).split())}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{source} holds a {type(value).__name__}; a run is a mapping, such as `model: {{uri: ...}}`")
    return value


def read(path: Path) -> dict[str, Any]:
    """Reads a run.yaml file."""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the run file {path}: {error}") from error


def override(mapping: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Applies `training.lr=5e-5`: a dotted path, then a YAML value. Returns a new mapping."""
    result: dict[str, Any] = json.loads(json.dumps(mapping))
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise InputError(f"{assignment!r} is not a setting: write path=value, such as training.lr=5e-5")
        _put(result, path.split("."), _scalar(text, path))
    return result


def build(mapping: Mapping[str, Any]) -> pb.RunSpec:
    """Turns a mapping into a complete, checked spec."""
    spec = pb.RunSpec()
    try:
        json_format.ParseDict(_long_enums(merge(DEFAULTS, mapping), pb.RunSpec.DESCRIPTOR, ""), spec)
    except json_format.ParseError as error:
        raise InputError(f"the run's settings cannot be used: {_plain(error)}") from error
    check(spec)
    return spec


def check(spec: pb.RunSpec) -> None:
    """Raises InputError for settings that contradict each other or can't work."""
    if not _NAME.fullmatch(spec.name):
        raise InputError(
            f"the run name {spec.name!r} cannot be used: lower-case letters, digits and dashes, at most 63 characters"
        )
    if not spec.model.uri:
        raise InputError("no model is given: say --model PATH, the folder that vLLM serves")
    generation, training = spec.generation, spec.training
    if generation.protocol == pb.PROTOCOL_TOKENS:
        sampling = json_format.MessageToDict(generation.sampling)
        for name in _RESTART_ONLY:
            if name in sampling:
                raise InputError(
                    f"generation.sampling.{name} cannot continue an interrupted answer exactly: "
                    "leave it out, or set generation.protocol=chat, where such an answer starts again"
                )
    for path, value in (
        ("generation.maxTokens", generation.max_tokens),
        ("generation.concurrency", generation.concurrency),
        ("hiddenStates.concurrency", spec.hidden_states.concurrency),
        ("training.tttSteps", training.ttt_steps),
        ("training.totalSeqLen", training.total_seq_len),
        ("training.batchSize", training.batch_size),
        ("training.lr", training.lr),
        ("training.epochs", training.epochs),
        ("evaluation.numSpeculativeTokens", spec.evaluation.num_speculative_tokens),
        ("thresholds.maxAttempts", spec.thresholds.max_attempts),
    ):
        if value <= 0:
            raise InputError(f"{path} is {value}: it must be above zero")
    if training.dtype not in ("float32", "bfloat16"):
        raise InputError(f"training.dtype is {training.dtype!r}: it must be float32 or bfloat16")
    if spec.hidden_states.mode == pb.HIDDEN_STATES_MODE_ONLINE:
        raise InputError("hiddenStates.mode online is not there yet: leave it at offline, which stores the states")
    layers = list(spec.hidden_states.layer_ids)
    if layers and (sorted(set(layers)) != layers or len(layers) != 4 or layers[0] == 0):
        raise InputError(
            f"hiddenStates.layerIds is {layers}: four layers are needed, ascending, without repeats, none of them 0: "
            "three for the drafter and the model's last, such as [2, 15, 27, 30]"
        )


def change(spec: pb.RunSpec, values: Mapping[str, str]) -> pb.RunSpec:
    """Applies a `set`: dotted path to JSON text. Name, model and dataset of a run can't change."""
    for path in values:
        if path.split(".")[0] in ("name", "model", "dataset"):
            raise InputError(f"{path} cannot change on a run: start another run with it")
    mapping = to_mapping(spec)
    for path, text in values.items():
        _put(mapping, path.split("."), json.loads(text))
    return build(mapping)


def to_mapping(spec: pb.RunSpec) -> dict[str, Any]:
    """The spec as people write it."""
    mapping: dict[str, Any] = json_format.MessageToDict(spec)
    return _short_enums(mapping, pb.RunSpec.DESCRIPTOR)


def to_json(spec: pb.RunSpec) -> bytes:
    """Canonical JSON: sorted, so that equal specs are equal bytes."""
    return json.dumps(to_mapping(spec), sort_keys=True, indent=2).encode() + b"\n"


def from_json(data: bytes) -> pb.RunSpec:
    """Reads what `to_json` wrote."""
    return build(json.loads(data))


def differences(ours: pb.RunSpec, theirs: pb.RunSpec) -> list[str]:
    """Settings that differ, as `path: ours, there theirs`. The pinned fingerprint is not a setting."""
    left, right = _flat(to_mapping(ours)), _flat(to_mapping(theirs))
    return [
        f"{path}: {left.get(path, 'unset')!r}, there {right.get(path, 'unset')!r}"
        for path in sorted(left.keys() | right.keys())
        if left.get(path) != right.get(path) and not path.startswith("model.fingerprint")
    ]


def settings_hash(*parts: Any) -> str:
    """16 hex digits over messages and plain values: names a configuration, so that another one is another name."""
    canonical = [json_format.MessageToDict(part) if hasattr(part, "DESCRIPTOR") else part for part in parts]
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:16]


def training_hash(spec: pb.RunSpec) -> str:
    """Names what a drafter was trained from: another hash is another drafter."""
    return settings_hash(spec.model, spec.dataset.hash, list(spec.hidden_states.layer_ids), spec.training)


def evaluation_hash(spec: pb.RunSpec) -> str:
    """Names what an evaluation measured."""
    return settings_hash(training_hash(spec), spec.evaluation)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings are merged, everything else is replaced."""
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        result[key] = merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return result


def _put(mapping: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = mapping.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InputError(f"{'.'.join(path)} is not a setting: {name} holds {inner!r}")
        mapping = inner
    mapping[path[-1]] = value


def _scalar(text: str, path: str) -> Any:
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        raise InputError(f"the value of {path} is not YAML: {text!r}") from error
    if isinstance(value, str):  # YAML 1.1 reads 5e-5 as a string
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return flat


def _prefix(enum: EnumDescriptor) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"


def _fields(descriptor: Descriptor) -> dict[str, FieldDescriptor]:
    return {name: field for field in descriptor.fields for name in (field.json_name, field.name)}


def _long_enums(mapping: Mapping[str, Any], descriptor: Descriptor, path: str) -> dict[str, Any]:
    fields = _fields(descriptor)
    result: dict[str, Any] = {}
    for key, value in mapping.items():
        field = fields.get(key)
        if field is None:
            known = ", ".join(sorted(field.json_name for field in descriptor.fields))
            raise InputError(f"{path}{key} is not a setting; known here: {known}")
        if field.enum_type is not None and isinstance(value, str) and not value.startswith(_prefix(field.enum_type)):
            names = [name.removeprefix(_prefix(field.enum_type)).lower() for name in field.enum_type.values_by_name]
            if value not in names[1:]:
                raise InputError(f"{path}{key} is {value!r}: it must be one of {', '.join(names[1:])}")
            result[key] = _prefix(field.enum_type) + value.upper()
        elif (message := _message(field)) is not None and isinstance(value, Mapping):
            result[key] = _long_enums(value, message, f"{path}{key}.")
        else:
            result[key] = value
    return result


def _short_enums(mapping: Mapping[str, Any], descriptor: Descriptor) -> dict[str, Any]:
    fields = _fields(descriptor)
    result: dict[str, Any] = {}
    for key, value in mapping.items():
        field = fields[key]
        if field.enum_type is not None:
            result[key] = value.removeprefix(_prefix(field.enum_type)).lower()
        elif (message := _message(field)) is not None and isinstance(value, Mapping):
            result[key] = _short_enums(value, message)
        else:
            result[key] = value
    return result


def _message(field: FieldDescriptor) -> Descriptor | None:
    """The message type of a field; None for values and maps."""
    message = field.message_type
    return None if message is None or message.GetOptions().map_entry else message


def _plain(error: json_format.ParseError) -> str:
    return " ".join(str(error).split()).removesuffix(".")
