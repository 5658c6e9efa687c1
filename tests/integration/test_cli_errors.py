"""What a user does wrong is answered by one sentence with the remedy and a non-zero status, never by a traceback."""

import json

import pytest
from tests.support.command_line import eyas, own_mounts

from eyas.run import spec as specs
from eyas.simulator.server import serve
from eyas.simulator.settings import SimulatorSettings

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"What is {number} + {number}?"}) for number in range(5)))
    return path


@pytest.fixture
async def endpoint(model_folder):
    """A simulator that serves the model under its path, and under no other name."""
    settings = SimulatorSettings(listen="127.0.0.1:0", model=str(model_folder), context=2048, vocab_size=49152)
    async with serve(settings) as url:
        yield url


def refused(outcome, *parts):
    """One sentence on the error output, with all these parts."""
    assert outcome.status == 1, outcome
    assert "Traceback" not in outcome.out + outcome.err
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1, outcome.err
    for part in parts:
        assert part in outcome.err


async def test_wrong_model_name(tmp_path, questions, endpoint, model_folder):
    wrong = tmp_path / "other-model"
    wrong.mkdir()
    outcome = await eyas(
        *("generate", "--model", wrong, "--endpoint", endpoint, "--dataset", questions, "--output", tmp_path / "demo")
    )
    refused(outcome, endpoint, str(model_folder), str(wrong), "--served-model-name")


async def test_unreachable_endpoint(tmp_path, questions, model_folder):
    outcome = await eyas(
        *("generate", "--model", model_folder, "--endpoint", NOWHERE, "--dataset", questions, "-o", tmp_path / "demo")
    )
    refused(outcome, NOWHERE, "cannot be reached")


async def test_too_small_a_context(tmp_path, questions, endpoint, model_folder):
    outcome = await eyas(
        *("generate", "--model", model_folder, "--endpoint", endpoint, "--dataset", questions),
        *("--max-tokens", "4096", "--output", tmp_path / "demo"),
    )
    refused(outcome, "4,096", "context of 2,048", "--max-tokens")


async def test_a_dataset_without_user_text(tmp_path, endpoint, model_folder):
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"messages": [{"role": "assistant", "content": "I speak to nobody"}]}\n{"prompt": " "}\n')
    outcome = await eyas(
        *("generate", "--model", model_folder, "--endpoint", endpoint, "--dataset", empty, "-o", tmp_path / "demo")
    )
    refused(outcome, str(empty), "no_user_text 1", "each needs what a user asks")


async def test_a_dataset_that_is_not_there(tmp_path, endpoint, model_folder):
    outcome = await eyas(
        *("generate", "--model", model_folder, "--endpoint", endpoint, "--dataset", tmp_path / "missing.jsonl"),
        *("--output", tmp_path / "demo"),
    )
    refused(outcome, "missing.jsonl does not exist", "give a file or a folder")


@pytest.mark.parametrize(("options", "said"), [("ro", "Read-only"), ("size=16k", "No space left")])
async def test_an_output_folder_that_cannot_be_written(tmp_path, questions, endpoint, model_folder, options, said):
    out = tmp_path / "out"
    fill = 'head -c 16k /dev/zero > "$0/other"' if options != "ro" else "true"
    outcome = await eyas(
        *("generate", "--model", model_folder, "--endpoint", endpoint, "--dataset", questions, "-o", out / "demo"),
        prefix=own_mounts(f'mount -t tmpfs -o {options} none "$0"; {fill}', out),
    )
    refused(outcome, str(out / "demo"), said, "choose another --output")


async def test_an_output_that_is_a_file(tmp_path, questions, endpoint, model_folder):
    outcome = await eyas(
        *("generate", "--model", model_folder, "--endpoint", endpoint, "--dataset", questions),
        *("--output", questions / "demo"),
    )
    refused(outcome, str(questions), "choose another --output")


async def test_a_run_folder_of_another_spec(tmp_path, questions, endpoint, model_folder):
    there = specs.build(
        {"name": "demo", "model": {"uri": "/another"}, "generation": {"maxTokens": 7}, "dataset": {"hash": "1"}}
    )
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "spec.json").write_bytes(specs.to_json(there))
    outcome = await eyas(
        *("generate", "--model", model_folder, "--endpoint", endpoint, "--dataset", questions),
        *("--max-tokens", "64", "--output", tmp_path / "demo"),
    )
    refused(outcome, str(tmp_path / "demo"), "another spec", "generation.maxTokens: 64, there 7", "another --output")


async def test_a_name_that_a_run_cannot_have(tmp_path, questions, endpoint, model_folder):
    outcome = await eyas(
        *("generate", "--model", model_folder, "--endpoint", endpoint, "--dataset", questions),
        *("--output", tmp_path / "My_Run"),
    )
    refused(outcome, "My_Run", "lower-case letters, digits and dashes")


async def test_a_model_without_tokenizer(tmp_path, questions):
    model = tmp_path / "model"
    model.mkdir()
    settings = SimulatorSettings(listen="127.0.0.1:0", model=str(model))
    async with serve(settings) as url:
        outcome = await eyas(
            *("generate", "--model", model, "--endpoint", url, "--dataset", questions, "--output", tmp_path / "demo")
        )
    refused(outcome, f"no tokenizer can be loaded from {model}", "the folder that vLLM serves")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["generate", "--output", "{tmp}/demo"], ["there is no run in", "eyas run --model"]),
        (["train", "{tmp}/demo"], ["there is no run in", "eyas run --model"]),
        (["generate", "--model", "m", "--output", "{tmp}/demo"], ["no dataset is given", "--dataset"]),
        (["generate", "--dataset", "x", "--output", "{tmp}/demo"], ["no model is given", "--model"]),
        (["run", "training.lr", "--model", "m", "--output", "{tmp}/demo"], ["training.lr", "path=value"]),
        (["run", "training.rate=1", "--model", "m", "--output", "{tmp}/demo"], ["training.rate", "lr"]),
        (["run", "-f", "{tmp}/missing.yaml", "--output", "{tmp}/demo"], ["missing.yaml", "cannot read"]),
        (["generate", "--protocol", "smoke", "--model", "m", "--output", "{tmp}/demo"], ["smoke", "tokens, chat"]),
        (["check", "--model", "m"], ["no endpoint is given", "--endpoint"]),
        (["check", "--model", "m", "--endpoint", NOWHERE], [NOWHERE, "cannot be reached"]),
        (["watch", "{tmp}/demo"], ["nothing works on", "eyas run --output"]),
        (["pause", "{tmp}/demo"], ["nothing works on", "eyas run --output"]),
        (["set", "{tmp}/demo", "timeouts.stall=3"], ["nothing works on", "eyas run --output"]),
        (["report", "{tmp}/demo"], ["no run", "demo"]),
        (["list", "{tmp}/nothing"], ["there are no runs in"]),
    ],
)
async def test_the_rest(tmp_path, arguments, parts):
    refused(await eyas(*(argument.format(tmp=tmp_path) for argument in arguments)), *parts)


async def test_a_vllm_that_is_not_there(tmp_path, questions, model_folder):
    outcome = await eyas(
        *("run", "--model", model_folder, "--dataset", questions, "--output", tmp_path / "demo"),
        *("--vllm-python", tmp_path / "python"),
    )
    refused(outcome, "there is no vLLM at", "--vllm-python")
