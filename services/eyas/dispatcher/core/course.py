"""Where a run is: its spec and the control log, folded. The log is all there is; nothing else says what was asked.

An entry is a JSON object with `at` and one more key: the name of what was asked, such as `{"set": {"values": …}}`, or
`{"entered": "extract"}` when a stage began, `done` when all that was asked is done.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from eyas.errors import DataError, InputError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2 as pb

STAGES: dict[int, str] = {
    pb.STAGE_GENERATE: "generate",
    pb.STAGE_EXTRACT: "extract",
    pb.STAGE_TRAIN: "train",
    pb.STAGE_EVALUATE: "evaluate",
    pb.STAGE_DONE: "done",
}
"""Names of the stages, as people write them."""

_NUMBERS = {name: stage for stage, name in STAGES.items()}
_FIXED = ("hiddenStates.layerIds", "generation.protocol", "generation.chatTemplateKwargs")


@dataclass
class Course:
    """The fold. `original` is spec.json; `spec` is with all changes."""

    original: pb.RunSpec
    spec: pb.RunSpec = field(init=False)
    until: int = pb.STAGE_GENERATE
    completed: int = 0
    """The last stage that is done; 0 before any."""
    paused: bool = False
    reason: str = ""
    cancelled: bool = False
    created: float = 0.0
    """Unix time of the first entry."""
    retried: int = 0
    """Parts of the log of failures below this number are void."""
    _began: float = 0.0
    _seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spec = pb.RunSpec()
        self.spec.CopyFrom(self.original)

    @property
    def stage(self) -> int:
        """The stage that is worked on; STAGE_DONE when all that was asked is done."""
        return self.completed + 1 if self.completed < self.until else pb.STAGE_DONE

    @property
    def finished(self) -> bool:
        """Whether there is nothing to do."""
        return self.cancelled or self.stage == pb.STAGE_DONE

    def seconds(self, now: float) -> dict[str, float]:
        """Seconds spent by stage, pauses included. `now` is Unix time."""
        spent = dict(self._seconds)
        if not self.finished and self._began:
            name = STAGES[self.stage]
            spent[name] = spent.get(name, 0.0) + max(0.0, now - self._began)
        return spent

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Takes the next entry of the log."""
        at = datetime.fromisoformat(entry["at"]).timestamp()
        before = STAGES.get(self.stage) if not self.finished else None
        (name,) = (key for key in entry if key not in ("at", "failures"))
        value = entry[name]
        if name == "proceed":
            self.until = max(self.until, pb.Stage.Value(value["until"]))
        elif name == "entered":
            self.completed = self.until if value == "done" else _NUMBERS[value] - 1
        elif name == "pause":
            self.paused, self.reason = True, value.get("reason", "")
        elif name == "resume":
            self.paused, self.reason = False, ""
        elif name == "cancel":
            self.cancelled = True
        elif name == "retry":
            self.retried = int(entry["failures"])
            self.completed = 0
        elif name == "set":
            self._set(value["values"])
        elif name == "addEndpoint":
            self.spec.endpoints.add(url=value["endpoint"]["url"])
        else:
            raise DataError(f"the control log has an entry {name!r}, which this version does not know")
        self.created = self.created or at
        self._clock(before, at)

    def _set(self, values: Mapping[str, str]) -> None:
        changed = specs.change(self.spec, values)
        if specs.evaluation_hash(changed) != specs.evaluation_hash(self.spec):
            self.completed = min(self.completed, pb.STAGE_TRAIN)
        if specs.training_hash(changed) != specs.training_hash(self.spec):
            self.completed = min(self.completed, pb.STAGE_EXTRACT)
        if changed.hidden_states.max_tokens != self.spec.hidden_states.max_tokens:
            self.completed = min(self.completed, pb.STAGE_GENERATE)
        self.spec = changed

    def _clock(self, before: str | None, at: float) -> None:
        after = STAGES.get(self.stage) if not self.finished else None
        if before == after and self._began:
            return
        if before is not None and self._began:
            self._seconds[before] = self._seconds.get(before, 0.0) + max(0.0, at - self._began)
        self._began = at


def check_set(values: Mapping[str, str], spec: pb.RunSpec) -> None:
    """Raises InputError for changes that would make a run's data two kinds of data."""
    for path in values:
        for fixed in _FIXED:
            if path == fixed or fixed.startswith(f"{path}."):
                raise InputError(f"{fixed} cannot change on a run: start another run with it")
    specs.change(spec, values)
