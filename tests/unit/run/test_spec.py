"""The spec as people write it: every mistake has a sentence, and what is stored reads back as it was."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.errors import InputError
from eyas.run import spec
from eyas.run.v1 import run_pb2 as pb

MINIMAL: dict[str, Any] = {"name": "demo", "model": {"uri": "/models/m"}}


def test_defaults_are_filled_and_stored_in_short_names() -> None:
    built = spec.build(MINIMAL)
    mapping = json.loads(spec.to_json(built))
    assert mapping["generation"]["protocol"] == "tokens"
    assert mapping["hiddenStates"]["mode"] == "offline"
    assert mapping["timeouts"] == {"connect": 10.0, "firstToken": 600.0, "stall": 120.0, "total": 0.0}
    assert built.generation.protocol == pb.PROTOCOL_TOKENS


def test_every_default_is_a_setting_of_the_proto() -> None:
    mapping = spec.to_mapping(spec.build(MINIMAL))
    for block, values in spec.DEFAULTS.items():
        assert mapping[block].keys() >= values.keys()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "training": st.fixed_dictionaries(
                {},
                optional={"lr": st.floats(1e-9, 1.0), "tttSteps": st.integers(1, 16), "seed": st.integers(0, 2**63)},
            ),
            "timeouts": st.fixed_dictionaries({}, optional={"total": st.floats(0, 1e9)}),
            "generation": st.fixed_dictionaries({}, optional={"maxTokens": st.integers(1, 2**31)}),
        },
    )
)
def test_what_is_stored_reads_back_equal(mapping: dict[str, Any]) -> None:
    built = spec.build({**MINIMAL, **mapping})
    assert spec.from_json(spec.to_json(built)) == built
    assert spec.to_json(spec.from_json(spec.to_json(built))) == spec.to_json(built)


def test_overrides_read_yaml_values_and_scientific_notation() -> None:
    given = ["training.lr=5e-5", "hiddenStates.backend=transformers", "vllm.extraArgs=[--a, b]"]
    mapping = spec.override(MINIMAL, given)
    built = spec.build(mapping)
    assert built.training.lr == pytest.approx(5e-5)
    assert built.hidden_states.backend == pb.HIDDEN_STATES_BACKEND_TRANSFORMERS
    assert list(built.vllm.extra_args) == ["--a", "b"]
    assert "training" not in MINIMAL


@pytest.mark.parametrize(
    ("mapping", "sentence"),
    [
        ({"trainin": {"lr": 1}}, "trainin is not a setting; known here: .*training"),
        ({"training": {"learning_rte": 1}}, "training.learning_rte is not a setting; known here: .*lr"),
        ({"training": {"lr": "much"}}, "lr"),
        ({"training": {"lr": 0}}, "training.lr is 0.0: it must be above zero"),
        ({"training": {"dtype": "int8"}}, "must be float32 or bfloat16"),
        ({"hiddenStates": {"mode": "sometimes"}}, "must be one of offline, online"),
        ({"hiddenStates": {"mode": "online"}}, "leave it at offline"),
        ({"hiddenStates": {"layerIds": [0, 1, 2, 3]}}, "none of them 0"),
        ({"hiddenStates": {"layerIds": [3, 2, 1, 4]}}, "ascending"),
        ({"name": "No Spaces"}, "lower-case letters"),
        ({"model": {"uri": ""}}, "--model PATH"),
        ({"generation": {"sampling": {"presencePenalty": 0.5}}}, "set generation.protocol=chat"),
        ({"generation": {"sampling": {"stop": ["x"]}}}, "cannot continue an interrupted answer exactly"),
    ],
)
def test_mistakes_get_a_sentence(mapping: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        spec.build(spec.merge(MINIMAL, mapping))


def test_chat_accepts_what_cannot_continue() -> None:
    built = spec.build(
        spec.merge(MINIMAL, {"generation": {"protocol": "chat", "sampling": {"presencePenalty": 0.5, "stop": ["x"]}}})
    )
    assert built.generation.sampling.presence_penalty == pytest.approx(0.5)


def test_a_change_is_checked_and_leaves_the_original() -> None:
    built = spec.build(MINIMAL)
    changed = spec.change(built, {"generation.concurrency": "128", "timeouts.stall": "30.5"})
    assert (changed.generation.concurrency, changed.timeouts.stall) == (128, 30.5)
    assert built.generation.concurrency == 64
    with pytest.raises(InputError, match="cannot change on a run"):
        spec.change(built, {"model.uri": '"/other"'})
    with pytest.raises(InputError, match="concurency is not a setting"):
        spec.change(built, {"generation.concurency": "1"})


def test_differences_name_path_and_both_values() -> None:
    left, right = spec.build(MINIMAL), spec.build(spec.merge(MINIMAL, {"training": {"lr": 1e-3}}))
    right.model.fingerprint.root = "/models/m"
    assert spec.differences(left, right) == ["training.lr: 0.0001, there 0.001"]


def test_a_hash_names_what_a_stage_was_made_from() -> None:
    built = spec.build(MINIMAL)
    other = spec.change(built, {"training.lr": "0.001"})
    evaluated = spec.change(built, {"evaluation.maxPrompts": "3"})
    assert spec.training_hash(built) != spec.training_hash(other)
    assert spec.training_hash(built) == spec.training_hash(evaluated)
    assert spec.evaluation_hash(built) != spec.evaluation_hash(evaluated)
    assert spec.evaluation_hash(built) != spec.evaluation_hash(other)


def test_a_run_file_that_is_no_mapping_is_named() -> None:
    with pytest.raises(InputError, match=r"run\.yaml holds a list"):
        spec.parse("- a", "run.yaml")
    with pytest.raises(InputError, match=r"run\.yaml is not YAML"):
        spec.parse("a: [", "run.yaml")
    assert spec.parse("", "run.yaml") == {}
