"""Acceptance of drafted tokens, from vLLM's counters."""

from dataclasses import dataclass

from eyas.errors import DataError
from eyas.vllm.metrics import SpecDecode


@dataclass(frozen=True)
class Acceptance:
    """What became of drafted tokens. A server that does not draft has drafts 0 and length 1."""

    drafts: int = 0
    """Steps in which tokens were drafted."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_position: tuple[int, ...] = ()

    @property
    def length(self) -> float:
        """Mean tokens of a step that drafted: 1 + accepted / drafts; the 1 is the model's own token."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    def per_step(self, tokens: int) -> float:
        """Mean tokens of all steps that made `tokens`: below `length` where there is often nothing to draft."""
        steps = tokens - self.accepted_tokens
        return tokens / steps if steps > 0 else 1.0

    @property
    def rate(self) -> float:
        """Share of the drafted tokens that were accepted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def by_position(self) -> list[float]:
        """Share of the drafts whose token at each position was accepted; never rising: a draft ends there."""
        return [accepted / self.drafts for accepted in self.accepted_by_position] if self.drafts else []


def between(before: SpecDecode | None, after: SpecDecode | None) -> Acceptance:
    """What happened between two moments of a server.

    Raises:
        DataError: the counters fell, so the server was restarted in between.
    """
    if after is None:
        return Acceptance()
    start = before or SpecDecode(0, 0, 0, ())
    earlier = start.accepted_by_position + (0,) * (len(after.accepted_by_position) - len(start.accepted_by_position))
    found = Acceptance(
        drafts=after.drafts - start.drafts,
        draft_tokens=after.draft_tokens - start.draft_tokens,
        accepted_tokens=after.accepted_tokens - start.accepted_tokens,
        accepted_by_position=tuple(b - a for a, b in zip(earlier, after.accepted_by_position, strict=True)),
    )
    if min(found.drafts, found.draft_tokens, found.accepted_tokens, *found.accepted_by_position, 0) < 0:
        raise DataError("the server's counters fell while it was measured: it was restarted; measure again")
    return found
