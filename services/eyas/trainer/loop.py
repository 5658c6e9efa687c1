"""The training loop: epochs of rows, checkpoints, held-out measurements, and a good end when told to stop.

All processes run it in step; the first one decides when to stop and when to write, and tells the others.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from eyas.errors import DataError
from eyas.run.v1 import run_pb2 as pb
from eyas.trainer.batch import Document
from eyas.trainer.checkpoint import Checkpoints, Place, gather
from eyas.trainer.data import Reader
from eyas.trainer.engine import Engine, Measured
from eyas.trainer.order import Window, epoch_rows, fill
from eyas.trainer.schedule import Schedule
from eyas.trainer.steplog import StepLog

LOG_SECONDS = 30.0
"""Between two parts of the step log."""
HELD_OUT_ROWS = 4
"""Rows measured at the end of each epoch, so that measuring stays cheap beside training."""


@dataclass(frozen=True)
class Split:
    """Windows of a split, and what reads them."""

    windows: list[Window]
    reader: Reader

    @property
    def sizes(self) -> list[int]:
        """Tokens of each window."""
        return [window.stop - window.start for window in self.windows]

    def read(self, rows: list[list[int]]) -> Iterator[list[Document]]:
        """Documents of rows of window indices."""
        return self.reader.rows([[self.windows[index] for index in row] for row in rows])


@dataclass(frozen=True)
class Interrupted:
    """The training was told to stop before its end; its checkpoint is written."""

    step: int


class Loop:
    """Trains from a place to the end."""

    def __init__(
        self,
        engine: Engine,
        spec: pb.RunSpec,
        train: Split,
        held_out: Split,
        *,
        checkpoints: Checkpoints,
        steps: StepLog | None,
        d2t: Tensor,
        stop: Callable[[], bool],
        report: Callable[[int, int, dict[str, float]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._training = engine, spec.training
        self._train, self._held_out = train, held_out
        self._checkpoints, self._steps, self._d2t = checkpoints, steps, d2t
        self._stop, self._report, self._clock = stop, report, clock
        batch, row = self._training.batch_size, self._training.total_seq_len
        self._row, self._batch = row, batch
        # Shuffles pack into slightly different numbers of rows: the schedule takes the first one's.
        first = len(self._batches(0))
        self.schedule = Schedule(
            peak=self._training.lr,
            warmup_ratio=self._training.warmup_ratio,
            total_steps=max(1, round(first * self._training.epochs)),
            max_seconds=self._training.max_seconds,
        )
        self.last: Measured | None = None
        self.held_out: dict[str, Any] = {}

    def run(self, place: Place) -> Place | Interrupted:
        """Trains to the end, or until `stop`. The place that is returned is the last step's."""
        self._began = self._clock() - place.seconds
        self._written = self._logged = self._clock()
        while not self.schedule.done(place.step, place.seconds):
            batches = self._batches(place.epoch)[place.batch :]
            mine = [row for batch in batches for row in self._share(batch)]
            read = self._train.read(mine)
            for batch in batches:
                rows = [next(read) for _ in self._share(batch)]
                place, told = self._one(place, rows, last=place.batch + 1 == len(self._batches(place.epoch)))
                if told:
                    read.close()  # type: ignore[attr-defined]
                    return Interrupted(place.step)
                if self.schedule.done(place.step, place.seconds):
                    break
            read.close()  # type: ignore[attr-defined]
        self._save(place)
        return place

    def _one(self, place: Place, rows: list[list[Document]], *, last: bool) -> tuple[Place, bool]:
        """One step, with all that follows it. Returns the next place, and whether to stop."""
        began = self._clock()
        rate = self.schedule.rate(place.step, place.seconds)
        measured = self._engine.step(rows, rate)
        self.last = measured
        if not math.isfinite(measured.loss):
            names = [document.name for row in rows for document in row]
            raise DataError(f"the loss of step {place.step + 1} is not finite: lower training.lr, or look at {names}")
        seconds, stop, write = self._agreed()
        place = replace(
            place,
            step=place.step + 1,
            epoch=place.epoch + last,
            batch=0 if last else place.batch + 1,
            seconds=seconds,
            tokens=place.tokens + measured.tokens,
        )
        record = self._record(place, measured, rate, self._clock() - began)
        if (last or self.schedule.done(place.step, seconds)) and self._held_out.windows:
            record["held_out"] = self.held_out = self._measure()
        if self._steps is not None:
            self._steps.add(record)
        self._tell(place, record)
        if stop or write:
            self._save(place)
        elif self._steps is not None and self._clock() - self._logged >= LOG_SECONDS:
            self._steps.flush()
            self._logged = self._clock()
        return place, stop and not self.schedule.done(place.step, seconds)

    def _agreed(self) -> tuple[float, bool, bool]:
        """Seconds of work, whether to stop, and whether a checkpoint is due: as the first process sees it."""
        due = self._clock() - self._written >= self._training.checkpoint_seconds
        told = self._engine.processes.leader_says([self._clock() - self._began, float(self._stop()), float(due)])
        return told[0], bool(told[1]), bool(told[2])

    def _save(self, place: Place) -> None:
        if self._steps is not None:
            self._steps.flush()
        if self._engine.processes.leads:
            self._checkpoints.save(place, gather(self._engine.drafter, self._engine.optimizer, self._d2t))
        self._written = self._logged = self._clock()

    def _batches(self, epoch: int) -> list[list[list[int]]]:
        rows = epoch_rows(self._train.sizes, self._row, self._training.seed, epoch)
        return [rows[start : start + self._batch] for start in range(0, len(rows), self._batch)]

    def _share(self, batch: list[list[int]]) -> list[list[int]]:
        """This process's rows of a batch."""
        processes = self._engine.processes
        return batch[processes.rank :: processes.world]

    def _measure(self) -> dict[str, Any]:
        sizes = self._held_out.sizes
        rows = fill(sizes, range(len(sizes)), self._row)[:HELD_OUT_ROWS]
        measured = self._engine.measure(list(self._held_out.read(self._share(rows))))
        return {
            "loss": measured.loss,
            "loss_by_step": measured.loss_by_step,
            "accuracy_by_step": measured.accuracy_by_step,
            "acceptance_length": measured.acceptance_length,
            "supervised": measured.supervised,
        }

    def _record(self, place: Place, measured: Measured, rate: float, seconds: float) -> dict[str, Any]:
        return {
            "step": place.step,
            "epoch": place.epoch if place.batch else place.epoch - 1,
            "loss": measured.loss,
            "loss_by_step": measured.loss_by_step,
            "accuracy_by_step": measured.accuracy_by_step,
            "acceptance_length": measured.acceptance_length,
            "lr": rate,
            "tokens": measured.tokens,
            "supervised": measured.supervised,
            "seconds": seconds,
        }

    def _tell(self, place: Place, record: dict[str, Any]) -> None:
        values = {
            "loss": record["loss"],
            "lr": record["lr"],
            "acceptance_length": record["acceptance_length"],
            "tokens_per_second": record["tokens"] / max(record["seconds"], 1e-9),
        }
        values |= {f"accuracy_{k}": accuracy for k, accuracy in enumerate(record["accuracy_by_step"])}
        self._report(place.step, self._total(place), values)

    def _total(self, place: Place) -> int:
        """Steps in all: by the measured pace where time ends the training first."""
        progress = self.schedule.progress(place.step, place.seconds)
        return max(place.step, min(self.schedule.total_steps, round(place.step / progress)))
