"""Learning rate over a training, and when it ends. Pure."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then half a cosine down to zero; by steps, or by time where `max_seconds` ends it sooner."""

    peak: float
    warmup_ratio: float
    total_steps: int
    max_seconds: float = 0.0

    def progress(self, step: int, seconds: float) -> float:
        """Share of the training that is done after `step` steps and `seconds` of work."""
        by_time = seconds / self.max_seconds if self.max_seconds else 0.0
        return min(1.0, max(step / self.total_steps, by_time))

    def rate(self, step: int, seconds: float) -> float:
        """Learning rate of the next step."""
        warmup = max(1, math.ceil(self.warmup_ratio * self.total_steps))
        if step < warmup:
            return self.peak * (step + 1) / (warmup + 1)
        return self.peak * 0.5 * (1 + math.cos(math.pi * self.progress(step, seconds)))

    def done(self, step: int, seconds: float) -> bool:
        """Whether no further step is due."""
        return step >= self.total_steps or bool(self.max_seconds and seconds >= self.max_seconds)
