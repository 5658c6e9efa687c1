"""Asks a server the prompts, and reads from its counters what that took."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from eyas.errors import EyasError
from eyas.evaluator import acceptance
from eyas.evaluator.acceptance import Acceptance
from eyas.evaluator.speed import Speed
from eyas.run.v1 import run_pb2 as pb
from eyas.vllm.client import VllmClient
from eyas.vllm.metrics import ServerMetrics
from eyas.vllm.phases import Activity, Limits
from eyas.vllm.requests import TokensRequest

log = structlog.get_logger()

_WARM_UP_TOKENS = 16
_QUIET_SECONDS = 0.1
_QUIET_TRIES = 50


@dataclass(frozen=True)
class Measured:
    """What a server did with the prompts."""

    acceptance: Acceptance
    speed: Speed
    answers: list[list[int]]
    """Ids of the answers, in the order of the prompts."""


@dataclass(frozen=True)
class Server:
    """A server, and how it is asked."""

    client: VllmClient
    url: str
    model: str
    limits: Limits
    evaluation: pb.Evaluation

    async def measure(self, prompts: Sequence[list[int]]) -> Measured:
        """Measures, after a warm-up that does not count.

        Raises:
            EndpointError: the server does not answer all of them.
            DataError: it was restarted meanwhile.
        """
        evaluation = self.evaluation
        # Other prompts than the measured ones, which must not lie in the prefix cache already.
        await self._ask([prompt[:_WARM_UP_TOKENS] for prompt in prompts[: evaluation.concurrency]], _WARM_UP_TOKENS)
        before = await self._quiet()
        clock = asyncio.get_running_loop().time
        begun = clock()
        answers = await self._ask(prompts, evaluation.max_tokens)
        seconds = clock() - begun
        after = await self._quiet()
        tokens = sum(map(len, answers))
        others = after.generation_tokens - before.generation_tokens - tokens
        if others > 0:
            log.warning("others used the server meanwhile: acceptance is theirs too", url=self.url, tokens=others)
        return Measured(acceptance.between(before.spec_decode, after.spec_decode), Speed(tokens, seconds), answers)

    async def logprobs(self, prompt: list[int]) -> dict[int, float]:
        """Log-probabilities of what the model would go on with. Raises EndpointError."""
        return await self.client.next_logprobs(self.url, self.model, prompt)

    async def _ask(self, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in prompts]
        room, activity = asyncio.Semaphore(self.evaluation.concurrency), Activity()
        sampling = pb.Sampling(temperature=self.evaluation.temperature)

        async def ask(place: int) -> None:
            async with room:
                request = TokensRequest(self.model, prompts[place], max_tokens, sampling)
                await self.client.complete(self.url, request, answers[place].extend, self.limits, activity)

        try:
            async with asyncio.TaskGroup() as group:
                for place in range(len(prompts)):
                    group.create_task(ask(place))
        except* EyasError as errors:
            raise _first(errors) from errors
        return answers

    async def _quiet(self) -> ServerMetrics:
        """The counters once no request is in flight: they are written a moment after the last token is sent."""
        for _ in range(_QUIET_TRIES):
            found = await self.client.scrape(self.url)
            if not found.running and not found.waiting:
                break
            await asyncio.sleep(_QUIET_SECONDS)
        return found


def _first(errors: BaseExceptionGroup[EyasError]) -> EyasError:
    """One of the errors of a group."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
