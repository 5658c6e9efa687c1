"""What an evaluation leaves behind, as JSON.

evaluation/<drafter>.json   settings_hash, measurement, answers: written when a drafter is measured
evaluation/result.json      settings_hash, num_speculative_tokens, prompts, drafters: written last
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eyas.evaluator import agreement, repetition
from eyas.evaluator.agreement import Parting
from eyas.evaluator.measure import Measured


def measurement(measured: Measured, differences: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """The numbers of one drafter. `differences` are from the model alone; None when there is nothing to compare."""
    found, speed = measured.acceptance, measured.speed
    compared: dict[str, Any] = {}
    if differences is not None:
        share = agreement.share(len(measured.answers), len(differences))
        compared = {"greedy_agreement": share, "differences": list(differences)}
    return {
        "acceptance_length": found.length,
        "acceptance_rate": found.rate,
        "acceptance_by_position": found.by_position,
        "drafts": found.drafts,
        "draft_tokens": found.draft_tokens,
        "accepted_tokens": found.accepted_tokens,
        "tokens_per_step": found.per_step(speed.tokens),
        "tokens": speed.tokens,
        "seconds": speed.seconds,
        "tokens_per_second": speed.tokens_per_second,
        "repetition_share": repetition.share(measured.answers),
        **compared,
    }


def difference(parting: Parting, gap: float | None, bound: float) -> dict[str, Any]:
    """A parting, and whether the model was undecided there."""
    return {
        "prompt": parting.prompt,
        "position": parting.position,
        "expected": parting.expected,
        "found": parting.found,
        "gap": gap,
        "near_tie": gap is not None and gap < bound,
    }


def part(settings_hash: str, found: Mapping[str, Any], answers: Sequence[Sequence[int]]) -> bytes:
    """The object of one drafter."""
    return json.dumps({"settings_hash": settings_hash, "measurement": found, "answers": answers}).encode()


def whole(settings_hash: str, tokens: int, prompts: int, drafters: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The object of an evaluation. `tokens` are drafted a step, `prompts` were asked of each drafter."""
    value = {
        "settings_hash": settings_hash,
        "num_speculative_tokens": tokens,
        "prompts": prompts,
        "drafters": drafters,
    }
    return json.dumps(value, indent=2).encode() + b"\n"
