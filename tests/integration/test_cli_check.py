"""`eyas check` and `eyas plan` against a real vLLM."""

import json

import pytest
from tests.support.command_line import eyas


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_check_finds_a_server_that_is_right(vllm_server, model_folder):
    outcome = await eyas(
        *("check", "--model", model_folder, "--served-model-name", "smollm2", "--endpoint", vllm_server.url)
    )
    assert outcome.status == 0, outcome
    rows = {line.split("│")[1].strip(): line for line in outcome.out.splitlines() if line.startswith("│")}
    for name in ("endpoint", "model", "context", "ids", "log-probabilities"):
        assert "│ ok" in rows[name], rows
    assert "2,048 tokens" in rows["context"]
    assert "most probable ids equal transformers'" in rows["log-probabilities"]
    assert "no reasoning markers" in rows["reasoning"]


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_check_finds_a_server_of_other_weights(vllm_server, model_folder, tmp_path):
    other = tmp_path / "model"
    other.mkdir()
    for path in model_folder.iterdir():
        (other / path.name).symlink_to(path)
    config = json.loads((model_folder / "config.json").read_text()) | {"rope_theta": 500.0}
    config["rope_parameters"] = {"rope_theta": 500.0, "rope_type": "default"}
    (other / "config.json").unlink()
    (other / "config.json").write_text(json.dumps(config))
    outcome = await eyas("check", "--model", other, "--served-model-name", "smollm2", "--endpoint", vllm_server.url)
    assert outcome.status == 1
    assert "is not ready for a run (log-probabilities)" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_plan_says_what_a_run_would_take(vllm_server, model_folder, tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text("\n".join(json.dumps({"prompt": f"What is {number}?"}) for number in range(40)) + '\n{"a": 1}')
    outcome = await eyas(
        *("plan", "--model", model_folder, "--served-model-name", "smollm2", "--endpoint", vllm_server.url),
        *("--dataset", questions, "--holdout", "4", "--max-tokens", "64", "--output", tmp_path / "demo"),
    )
    assert outcome.status == 0, outcome
    facts = dict(line.strip().split("   ", 1) for line in outcome.out.splitlines())
    assert facts["conversations"].strip() == "36 to train on, 4 held out"
    assert "1 (unknown_form 1)" in facts["rows that cannot be used"]
    assert "at most 2,560" in facts["answer tokens"]
    assert "measured with 8 at once" in facts["time to generate"]
    assert "KiB a token" in facts["hidden states"]
    assert not (tmp_path / "demo").exists()
