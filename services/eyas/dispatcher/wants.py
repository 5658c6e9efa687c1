"""Which processes a stage needs."""

from collections.abc import Callable

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher.core.course import Course
from eyas.dispatcher.core.processes import Process, ProcessState
from eyas.dispatcher.launching import Wanted
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2

_SERVERS = (pb.ROLE_VLLM_GENERATE, pb.ROLE_VLLM_EXTRACT)


def is_server(role: int) -> bool:
    """Whether it answers requests; a job ends by itself."""
    return role in _SERVERS


def of_stage(course: Course, run: str, process: Callable[[str], Process]) -> list[Wanted]:
    """The processes of the stage that a run is in. Another configuration is another name."""
    spec = course.spec
    if course.stage == run_pb2.STAGE_GENERATE:
        if course.original.endpoints:
            return []  # the user's own
        role, configuration = pb.ROLE_VLLM_GENERATE, specs.settings_hash(spec.model, spec.vllm)
    elif course.stage == run_pb2.STAGE_EXTRACT:
        vllm = spec.hidden_states.backend == run_pb2.HIDDEN_STATES_BACKEND_VLLM
        role = pb.ROLE_VLLM_EXTRACT if vllm else pb.ROLE_EXTRACTOR
        configuration = specs.settings_hash(spec.model, spec.vllm, list(spec.hidden_states.layer_ids))
    elif course.stage == run_pb2.STAGE_TRAIN:
        role, configuration = pb.ROLE_TRAINER, specs.training_hash(spec)
    elif course.stage == run_pb2.STAGE_EVALUATE:
        role, configuration = pb.ROLE_EVALUATOR, specs.evaluation_hash(spec)
    else:
        return []
    name = f"{_short(role)}-{run}-{configuration}"
    return [Wanted(process(name), role, spec)]


def reason(want: Wanted, launcher: bool) -> str:
    """What is waited for."""
    what, process = _short(want.role), want.process
    if not launcher:
        return f"needs {what}, but nothing is connected that could start it: go on with `eyas run` where the GPUs are"
    if process.state is ProcessState.EXITED:
        return f"{what} ended with {process.exit_code} and is started again: {process.detail}"
    return f"waits for {what} to start{': ' + process.detail if process.detail else ''}"


def _short(role: "pb.Role.ValueType") -> str:
    return pb.Role.Name(role).removeprefix("ROLE_").lower().replace("_", "-")
