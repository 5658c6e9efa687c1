"""Tokens a second, and how much faster one is than another."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Speed:
    """Tokens generated in wall time, over all requests that ran at once."""

    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """0 when nothing was measured."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def over(self, base: "Speed") -> float | None:
        """How many times as fast as `base`; None when either made nothing."""
        if not self.tokens_per_second or not base.tokens_per_second:
            return None
        return self.tokens_per_second / base.tokens_per_second
