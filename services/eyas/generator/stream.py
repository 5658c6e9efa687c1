"""One attempt: from the assignment to an answer that is read as a message, or to the reason why there is none."""

from array import array
from collections import defaultdict

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.errors import InputError
from eyas.generator.core.held import Held
from eyas.generator.core.ledger import Ledger
from eyas.generator.core.plan import Chat, Complete, Extract, NoRoom, Parse, Render, plan
from eyas.generator.tokenizing import Tokenizing
from eyas.vllm.client import Ending, VllmClient
from eyas.vllm.interruption import DETAIL, InterruptionError
from eyas.vllm.phases import Activity, Limits
from eyas.vllm.requests import ChatRequest, ExtractionRequest, TokensRequest


class Attempts:
    """Makes attempts. What they gain is in `Held` at once, so that an attempt may be cancelled at any moment."""

    def __init__(self, ledger: Ledger, client: VllmClient, tokenizing: Tokenizing) -> None:
        self._ledger = ledger
        self._client = client
        self._tokenizing = tokenizing
        self.activities: defaultdict[str, Activity] = defaultdict(Activity)
        """By base address of the server."""

    async def make(self, held: Held) -> None:
        """Makes one attempt and notes how it ended."""
        try:
            await self._answer(held)
        except InterruptionError as interruption:
            self._ledger.interrupt(held, interruption.cause, interruption.detail, interruption.http_status)
        except InputError as error:
            self._ledger.interrupt(held, pb.CAUSE_TEMPLATE, str(error)[:DETAIL])

    async def _answer(self, held: Held) -> None:
        ending = Ending(pb.FINISH_REASON_UNSPECIFIED, "", 0.0, 0.0)
        while True:
            match plan(held):
                case Render():
                    assign = held.assign
                    held.rendered(await self._tokenizing.render(assign.messages, assign.chat_template_kwargs))
                case Complete(prompt, max_tokens):
                    ending = await self._complete(held, prompt, max_tokens)
                case Parse():
                    message = await self._tokenizing.parse(held.prompt, held.ids)
                    return self._finish(held, message, ending)
                case Chat():
                    return await self._chat(held)
                case Extract():
                    return await self._extract(held)
                case NoRoom(detail):
                    return self._ledger.interrupt(held, pb.CAUSE_ITEM, detail)

    async def _complete(self, held: Held, prompt: list[int], max_tokens: int) -> Ending:
        assign = held.assign
        request = TokensRequest(assign.model, prompt, max_tokens, assign.sampling, assign.priority, _request_id(held))
        activity = self.activities[assign.endpoint]
        ending = await self._client.complete(assign.endpoint, request, held.extend, _limits(assign), activity)
        held.answered = (ending.finish_reason, ending.stop_reason)
        return ending

    async def _chat(self, held: Held) -> None:
        assign = held.assign
        held.ids = array("I")
        request = ChatRequest(
            assign.model,
            assign.messages,
            assign.chat_template_kwargs,
            assign.max_tokens,
            assign.sampling,
            assign.priority,
            _request_id(held),
        )
        activity = self.activities[assign.endpoint]
        answer = await self._client.chat(assign.endpoint, request, held.extend, _limits(assign), activity)
        held.rendered(answer.prompt)
        held.answered = (answer.ending.finish_reason, answer.ending.stop_reason)
        self._finish(held, answer.message, answer.ending)

    async def _extract(self, held: Held) -> None:
        assign = held.assign
        request = ExtractionRequest(
            assign.model, held.prompt.tolist(), assign.hidden_states_key, assign.priority, _request_id(held)
        )
        activity = self.activities[assign.endpoint]
        ending = await self._client.extract(assign.endpoint, request, _limits(assign), activity)
        held.answered = (pb.FINISH_REASON_STOP, "")  # the one token is no answer
        self._finish(held, pb.Message(), ending)

    def _finish(self, held: Held, message: pb.Message, ending: Ending) -> None:
        self._ledger.finish(held, message, ending.first_token_seconds, ending.seconds)


def _limits(assign: pb.Assign) -> Limits:
    timeouts = assign.timeouts
    return Limits(timeouts.connect, timeouts.first_token, timeouts.stall, timeouts.total)


def _request_id(held: Held) -> str:
    item = held.item
    return f"{item.run}-{item.position}-{item.turn}-{held.attempt}"
