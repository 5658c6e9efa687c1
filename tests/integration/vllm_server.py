"""A vLLM server with the connector, for tests."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm/bin/python"


class Server:
    """Started at once; `wait` until it serves."""

    def __init__(
        self, model: Path, storage: str, layer_ids: Sequence[int], log: Path, *, v2: bool, args: Sequence[str] = ()
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        speculative = {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layer_ids)}},
        }
        transfer = {
            "kv_connector": "EyasHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_module_path": "eyas.vllm.connector",
            "kv_connector_extra_config": {"storage_uri": storage, "upload_seconds": 1},
        }
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "30",
            "VLLM_USE_V2_MODEL_RUNNER": "1" if v2 else "0",
        }
        if v2:
            environment |= {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parent / "triton_cpu")}
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--served-model-name", "m", "--skip-tokenizer-init", "--enforce-eager", "--dtype", "float32"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024", "--shutdown-timeout", "30"]
        command += ["--speculative-config", json.dumps(speculative), "--kv-transfer-config", json.dumps(transfer)]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, *args], env=environment, stdout=file, stderr=file, start_new_session=True
            )

    def wait(self, seconds: float = 240) -> None:
        """Until it serves."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5)
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise AssertionError(f"vLLM did not start:\n{self.log.read_text()[-6000:]}")

    def complete(self, ids: Sequence[int], params: dict | None, timeout: float = 60) -> dict:
        """One token after `ids`, with `kv_transfer_params`."""
        body = {"model": "m", "prompt": list(ids), "max_tokens": 1, "temperature": 0, "detokenize": False}
        if params is not None:
            body["kv_transfer_params"] = params
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels that match; `name` may carry one label."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        family, _, label = name.partition("{")
        lines = re.findall(rf"^{re.escape(family)}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for labels, value in lines if label.rstrip("}") in labels)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
