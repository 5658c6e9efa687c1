"""What a run would take: tokens, time and room. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from eyas.cli.progress import duration
from eyas.run.v1 import run_pb2 as pb

_BYTES = {"float32": 4}


@dataclass(frozen=True)
class Probe:
    """What a few answers showed."""

    answers: int
    rate: float
    """Tokens a second, all answers together."""
    mean_length: float
    cut: int
    """Answers that reached the limit of the probe."""


@dataclass(frozen=True)
class Estimate:
    """All that an estimate rests on. `spec` is complete, with its dataset's counts."""

    spec: pb.RunSpec
    prompts: Sequence[int]
    """Lengths of some rendered prompts, in tokens."""
    probe: Probe | None = None
    rate: float | None = None
    """Tokens a second, if given."""
    mean_length: int | None = None
    """Of an answer, in tokens, if given."""

    @property
    def length(self) -> float:
        """Expected tokens of an answer: what is given, else what an uncut probe showed, else the limit."""
        limit = self.spec.generation.max_tokens
        if self.mean_length:
            return min(self.mean_length, limit)
        return self.probe.mean_length if self.probe and not self.probe.cut else limit

    @property
    def tokens(self) -> float:
        """Expected tokens of all answers."""
        return self.length * self.spec.dataset.generations

    def facts(self) -> list[tuple[str, str]]:
        """Name and value, for people."""
        count, limit = self.spec.dataset.generations, self.spec.generation.max_tokens
        mean = statistics.mean(self.prompts)
        facts = [
            ("prompt tokens", f"about {mean * count:,.0f} (mean {mean:,.0f}, longest seen {max(self.prompts):,})"),
            ("answer tokens", f"about {self.tokens:,.0f}, at most {limit * count:,}"),
        ]
        context = self.spec.model.fingerprint.context
        short = sum(length + limit > context for length in self.prompts) / len(self.prompts)
        if context and short:
            facts.append(
                ("cut by the context", f"{short:.1%} of the prompts leave room for less than {limit:,} tokens")
            )
        return [*facts, ("time to generate", self._time()), ("an interrupted answer", interrupted(self.spec))]

    def hidden_states(self) -> float:
        """Bytes of the hidden states of all sequences."""
        return self.spec.dataset.generations * (self.length + statistics.mean(self.prompts)) * self.row()

    def row(self) -> int:
        """Bytes of the hidden states of one token."""
        pinned = self.spec.model.fingerprint
        return len(self.spec.hidden_states.layer_ids) * pinned.hidden_size * _BYTES.get(pinned.dtype, 2)

    def _time(self) -> str:
        if self.rate:
            return f"about {duration(self.tokens / self.rate)} at {self.rate:,.0f} tokens/s"
        if self.probe is None:
            return "unknown: give --endpoint for a short probe, or --rate in tokens/s"
        seconds = duration(self.tokens / self.probe.rate)
        return f"about {seconds} at {self.probe.rate:,.0f} tokens/s, measured with {self.probe.answers} at once"


def interrupted(spec: pb.RunSpec) -> str:
    """What happens to an answer that is interrupted."""
    if spec.generation.protocol == pb.PROTOCOL_CHAT:
        return "starts again, since protocol chat cannot continue it; protocol tokens can"
    return "goes on where it was"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
