import json

import pytest
import typer
from typer.testing import CliRunner

from eyas.cli import options
from eyas.errors import InputError
from eyas.run import spec as specs


def invoke(*arguments):
    """What a command with all options makes of what is typed."""
    seen = {}

    @options.accepting(*options.MODEL, *options.DATA, *options.GENERATE, *options.EXTRACT, *options.TRAIN)
    def command(given: dict, overrides: options.Overrides = None, *, holdout: options.Holdout = None) -> None:
        seen.update(given | options.holdout(holdout))
        seen["overrides"] = overrides or []

    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen


def test_only_what_was_typed_is_given():
    assert invoke() == {"overrides": []}


def test_options_are_settings_of_the_run():
    given = invoke(
        *("--model", "some/model", "--endpoint", "http://a:1/v1/", "--endpoint", "http://b:2"),
        *("--dataset", "x.jsonl", "--max-tokens", "64", "--concurrency", "7", "--lr", "5e-5"),
        *("--sampling-params", '{"temperature": 0.5, "top_p": 0.9, "stopTokenIds": [1]}'),
        *("--target-layer-ids", "2, 15,27,30", "training.epochs=2", "--holdout", "12"),
    )
    overrides = given.pop("overrides")
    spec = specs.build(options.mapping("demo", None, given, overrides))
    assert [endpoint.url for endpoint in spec.endpoints] == ["http://a:1", "http://b:2"]
    assert (spec.generation.max_tokens, spec.generation.concurrency, spec.training.lr) == (64, 7, 5e-5)
    assert spec.generation.sampling.top_p == 0.9
    assert spec.generation.sampling.temperature == 0.5
    assert list(spec.generation.sampling.stop_token_ids) == [1]
    assert spec.training.epochs == 2
    assert (spec.dataset.holdout, list(spec.dataset.sources)) == (12, ["x.jsonl"])
    assert given["hiddenStates.layerIds"] == [2, 15, 27, 30]


def test_a_path_that_exists_is_made_absolute(tmp_path, monkeypatch):
    (tmp_path / "data.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    given = invoke("--dataset", "data.jsonl", "--model", "org/name", "--holdout", "data.jsonl")
    assert given["dataset.sources"] == [str(tmp_path / "data.jsonl")]
    assert given["dataset.holdoutSources"] == [str(tmp_path / "data.jsonl")]
    assert given["model.uri"] == "org/name"


def test_later_beats_earlier_file_then_option_then_assignment(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("model: {uri: m}\ntraining: {lr: 1, epochs: 1, seed: 1}\n")
    spec = specs.build(options.mapping("demo", file, {"training.lr": 2.0}, ["training.epochs=3"]))
    assert (spec.training.lr, spec.training.epochs, spec.training.seed) == (2, 3, 1)


def test_changes_of_a_stored_run_are_json():
    values = options.values({"training.lr": 1e-4}, ["timeouts.stall=300", "evaluation.drafters=[none, trained]"])
    assert {path: json.loads(text) for path, text in values.items()} == {
        "training.lr": 1e-4,
        "timeouts.stall": 300,
        "evaluation.drafters": ["none", "trained"],
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sampling-params", "{"], "--sampling-params is not JSON"),
        (["--sampling-params", "[]"], "must be a JSON object"),
        (["--target-layer-ids", "2,x"], "--target-layer-ids"),
    ],
)
def test_what_cannot_be_read_names_the_option(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        invoke(*arguments)
