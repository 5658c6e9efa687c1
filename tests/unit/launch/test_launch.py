"""The command lines of vLLM."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from eyas.errors import InputError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2 as pb
from eyas.vllm import launch

CPU = launch.Host(python=Path("/env/bin/python"), cpu=True, cores=2, preload="/env/lib/libiomp5.so")
GPU = launch.Host(python=Path("/env/bin/python"), cpu=False)


def spec(**more: object) -> pb.RunSpec:
    base = {
        "name": "a",
        "model": {"uri": "/models/m", "servedName": "m"},
        "hiddenStates": {"layerIds": [2, 15, 27, 30]},
    }
    return specs.build({**base, **more})


def value(command: launch.Command, option: str) -> str:
    return command.arguments[command.arguments.index(option) + 1]


def test_a_server_that_answers():
    command = launch.generating(spec(), GPU)
    assert command.arguments[:3] == ("/env/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    assert value(command, "--model") == "/models/m"
    assert value(command, "--served-model-name") == "m"
    assert value(command, "--dtype") == "auto"
    assert value(command, "--generation-config") == "vllm"
    assert "--max-model-len" not in command.arguments
    assert "--enforce-eager" not in command.arguments
    assert not {"VLLM_CPU_KVCACHE_SPACE", "LD_PRELOAD"} & command.environment.keys()


def test_the_settings_of_the_run_come_through_and_extra_arguments_last():
    settings = {"dtype": "float16", "maxModelLen": 2048, "extraArgs": ["--max-num-seqs", "7"]}
    command = launch.generating(spec(vllm=settings), CPU)
    assert value(command, "--dtype") == "float16"
    assert value(command, "--max-model-len") == "2048"
    assert "--enforce-eager" in command.arguments
    assert command.arguments[-2:] == ("--max-num-seqs", "7")
    assert command.environment["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert command.environment["LD_PRELOAD"] == "/env/lib/libiomp5.so"


def test_a_small_machine_runs_one_process_less():
    assert launch.generating(spec(), CPU).environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert launch.generating(spec(), CPU).environment["OMP_NUM_THREADS"] == "1"
    large = replace(CPU, cores=16)
    for host in (GPU, large):
        environment = launch.generating(spec(), host).environment
        assert not {"VLLM_ENABLE_V1_MULTIPROCESSING", "OMP_NUM_THREADS"} & environment.keys()


def test_the_name_is_the_uri_when_none_is_given():
    assert launch.served_name(spec(model={"uri": "/models/m"})) == "/models/m"


def test_extraction_names_the_layers_twice_and_our_connector():
    command = launch.extracting(spec(), GPU, "s3://bucket/runs")
    speculative = json.loads(value(command, "--speculative-config"))
    transfer = json.loads(value(command, "--kv-transfer-config"))
    assert speculative["method"] == "extract_hidden_states"
    assert speculative["num_speculative_tokens"] == 1
    assert speculative["draft_model_config"]["hf_config"] == {"eagle_aux_hidden_state_layer_ids": [2, 15, 27, 30]}
    assert transfer["kv_connector"] == "EyasHiddenStatesConnector"
    assert transfer["kv_connector_module_path"] == "eyas.vllm.connector"
    assert transfer["kv_role"] == "kv_producer"
    assert transfer["kv_connector_extra_config"] == {"storage_uri": "s3://bucket/runs", "layer_ids": [2, 15, 27, 30]}


def test_extraction_without_layers_is_refused():
    with pytest.raises(InputError, match="layerIds is empty"):
        launch.extracting(spec(hiddenStates={}), GPU, "/tmp/x")


def test_drafters():
    run = spec(evaluation={"numSpeculativeTokens": 5})
    drafted = json.loads(value(launch.with_drafter(run, CPU, Path("/d")), "--speculative-config"))
    assert drafted == {"num_speculative_tokens": 5, "method": "eagle3", "model": "/d"}
    ngram = json.loads(value(launch.with_ngram(run, CPU), "--speculative-config"))
    assert ngram["method"] == "ngram"
    assert ngram["num_speculative_tokens"] == 5


def environment(root: Path, distribution: str) -> Path:
    packages = root / "lib" / "python3.11" / "site-packages"
    (packages / "vllm").mkdir(parents=True)
    (packages / f"{distribution}-0.32.0.dist-info").mkdir()
    python = root / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return python


def test_a_cpu_build_is_found_with_its_openmp(tmp_path: Path):
    python = environment(tmp_path, "vllm_cpu")
    (tmp_path / "lib" / "libiomp5.so").touch()
    host = launch.Host.detect(python)
    cores = len(os.sched_getaffinity(0))
    assert host == launch.Host(python=python, cpu=True, cores=cores, preload=str(tmp_path / "lib" / "libiomp5.so"))


def test_a_gpu_build_needs_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    python = environment(tmp_path, "vllm")
    monkeypatch.setattr(launch, "_GPU_DEVICES", (str(tmp_path),))
    assert launch.Host.detect(python).cpu is False
    monkeypatch.setattr(launch, "_GPU_DEVICES", (str(tmp_path / "absent"),))
    assert launch.Host.detect(python).cpu is True


def test_an_environment_without_vllm_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="there is no vLLM at"):
        launch.Host.detect(tmp_path / "bin" / "python")
