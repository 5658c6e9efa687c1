"""Answers that can be foretold: token k of an answer is a hash of the prompt and k, so any continuation is exact.

A prompt that holds a partial answer is told from its marker, the id that ends the generation prompt and is in no
answer. A partial answer that ended already gets a second answer after it, as from a real model.
"""

import hashlib
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

_BYTE_IDS = 256  # ids 256 to 511 stand for the bytes of a rendered prompt
_ANSWER_IDS = 512  # ids from here on are in answers
_MASK = 2**64 - 1
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A model without weights."""

    vocab_size: int = 32_000
    eos_id: int = 2
    marker_id: int = 3
    median_tokens: float = 200.0
    sigma: float = 0.8
    seed: int = 0

    def locate(self, ids: Sequence[int]) -> tuple[int, int]:
        """Hash of the prompt proper, and how many ids of its answer follow it."""
        end = len(ids)
        for index in range(len(ids) - 1, -1, -1):
            if ids[index] == self.marker_id:
                end = index + 1
                break
        digest = hashlib.blake2b(array("I", ids[:end]).tobytes(), digest_size=8, salt=self.seed.to_bytes(8, "big"))
        return int.from_bytes(digest.digest(), "big"), len(ids) - end

    def length(self, prompt_hash: int) -> int:
        """Ids of the whole answer, the ending one included."""
        quantile = (_mix(prompt_hash) + 0.5) / 2**64
        return max(1, round(self.median_tokens * math.exp(self.sigma * _NORMAL.inv_cdf(quantile))))

    def token(self, prompt_hash: int, length: int, k: int) -> int:
        """Id k of the answer."""
        if (k + 1) % length == 0:
            return self.eos_id
        span = self.vocab_size - _ANSWER_IDS
        for salt in range(4):
            token = _ANSWER_IDS + _mix(prompt_hash + (k << 2) + salt) % span
            if token not in (self.eos_id, self.marker_id):
                return token
        raise AssertionError("four draws in a row hit one of two ids")

    def answer(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """The unbroken answer to a prompt."""
        prompt_hash, done = self.locate(prompt)
        length = self.length(prompt_hash)
        return [self.token(prompt_hash, length, k) for k in range(done, min(length, done + max_tokens))]

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Messages as ids: their bytes, and the marker."""
        text = json.dumps(
            [{"role": message["role"], "content": message["content"]} for message in messages], ensure_ascii=False
        )
        return [_BYTE_IDS + byte for byte in text.encode()] + [self.marker_id]

    def text(self, ids: Sequence[int]) -> str:
        """Ids as text; the ending id is none."""
        return "".join(f" {token}" for token in ids if token != self.eos_id)


def _mix(value: int) -> int:
    """The finaliser of splitmix64: 64 bits in, 64 well mixed bits out."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
