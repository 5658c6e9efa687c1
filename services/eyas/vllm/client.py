"""The boundary to a model server: its HTTP errors become EndpointError here, and nowhere else.

A chunk of a stream costs one read, one parse and two assignments: no timer, no task, no object of the framework. The
limits on time are looked at by one timer a request that is set anew only when it fires.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.errors import EndpointError
from eyas.vllm import metrics
from eyas.vllm.interruption import InterruptionError, by_status, plain
from eyas.vllm.phases import Activity, Limits, Phase, Phases
from eyas.vllm.requests import ChatRequest, ExtractionRequest, Request, TokensRequest
from eyas.vllm.stream import ChatReader, Ids, StreamReader, TokenReader

_KEEPALIVE_SECONDS = 3.0  # vLLM closes an idle connection after 5 s: a client that keeps it longer meets a closed one
_PROBE_SECONDS = 10.0
_LOGPROBS_SECONDS = 60.0
_TAIL_SECONDS = 1.0  # for what follows an answer that has ended, so that its connection can be used again
_ERROR_BYTES = 64 * 1024
_REMEDIES = {
    401: ": give the server's key in EYAS_API_KEY",
    403: ": the key in EYAS_API_KEY is not allowed to",
    404: ": give the base address without /v1, such as http://127.0.0.1:8000",
}


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says that it is."""

    models: tuple[str, ...]
    """Names it serves, the base model's first."""
    root: str
    """Where the first model was read from; empty when it doesn't say."""
    context: int
    """Prompt and answer together, in tokens; 0 when it doesn't say."""
    version: str
    """Of vLLM; empty for another server."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended."""

    finish_reason: pb.FinishReason.ValueType
    """stop or length."""
    stop_reason: str
    """Stop id as text; empty when the model ended by its own."""
    first_token_seconds: float
    """From sending to the first token."""
    seconds: float


@dataclass(frozen=True, slots=True)
class ChatEnding:
    """How an answer of protocol chat ended."""

    ending: Ending
    prompt: Ids
    """Ids of the prompt; empty when the server doesn't say."""
    message: pb.Message


_CAUSES = {
    Phase.CONNECT: pb.CAUSE_TIMEOUT_CONNECT,
    Phase.FIRST_TOKEN: pb.CAUSE_TIMEOUT_FIRST_TOKEN,
    Phase.STALL: pb.CAUSE_TIMEOUT_STALL,
    Phase.TOTAL: pb.CAUSE_TIMEOUT_TOTAL,
}


class VllmClient:
    """One pool of connections to any number of servers. The key is sent to all of them, and never written anywhere."""

    def __init__(self, api_key: str = "") -> None:
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def probe(self, url: str, seconds: float = _PROBE_SECONDS) -> ServerInfo:
        """Asks a server what it is. Raises EndpointError: out of reach, not allowed, not OpenAI-compatible."""
        status, body = await self._get(f"{url.rstrip('/')}/v1/models", seconds)
        if status != 200:
            raise EndpointError(f"{url}/v1/models answers HTTP {status}{_REMEDIES.get(status, _said(body))}")
        try:
            cards = orjson.loads(body)["data"]
            names = tuple(str(card["id"]) for card in cards)
            first: dict[str, Any] = cards[0]
        except (orjson.JSONDecodeError, KeyError, TypeError, IndexError) as error:
            raise EndpointError(
                f"{url}/v1/models does not list models: it is not an OpenAI-compatible server"
            ) from error
        status, body = await self._get(f"{url.rstrip('/')}/version", seconds)
        return ServerInfo(
            models=names,
            root=str(first.get("root") or ""),
            context=int(first.get("max_model_len") or 0),
            version=_version(body) if status == 200 else "",
        )

    async def scrape(self, url: str, seconds: float = _PROBE_SECONDS) -> metrics.ServerMetrics:
        """Reads a server's /metrics. Raises EndpointError."""
        status, body = await self._get(f"{url.rstrip('/')}/metrics", seconds)
        if status != 200:
            raise EndpointError(f"{url}/metrics answers HTTP {status}{_said(body)}")
        return metrics.parse(body.decode(errors="replace"))

    async def healthy(self, url: str, seconds: float = _PROBE_SECONDS) -> bool:
        """Whether /health answers 200: the engine lives. It may be draining."""
        try:
            status, _ = await self._get(f"{url.rstrip('/')}/health", seconds)
        except EndpointError:
            return False
        return status == 200

    async def ping(self, url: str, model: str, *, chat: bool = False, seconds: float = _LOGPROBS_SECONDS) -> None:
        """Has the engine make one token after a fixed prompt. Raises EndpointError."""
        if not chat:
            await self._scored(url, model, [1], seconds)
            return
        await self._choice(
            f"{url.rstrip('/')}/v1/chat/completions",
            {"model": model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1, "temperature": 0.0},
            seconds,
        )

    async def complete(
        self, url: str, request: TokensRequest, on_ids: Callable[[Ids], None], limits: Limits, activity: Activity
    ) -> Ending:
        """Streams an answer to ids as ids. `on_ids` gets them as they come, those before an interruption too.

        `activity` is the server's, shared by all its streams. Raises InterruptionError.
        """
        phases = Phases(limits, activity, asyncio.get_running_loop().time())
        return await self._stream(url, request, TokenReader(request.prompt), on_ids, phases)

    async def chat(
        self, url: str, request: ChatRequest, on_ids: Callable[[Ids], None], limits: Limits, activity: Activity
    ) -> ChatEnding:
        """Streams an answer to messages as text, and ids where the server gives them. Raises InterruptionError."""
        reader = ChatReader()
        phases = Phases(limits, activity, asyncio.get_running_loop().time())
        ending = await self._stream(url, request, reader, on_ids, phases)
        return ChatEnding(ending, reader.prompt, reader.text.message())

    async def extract(self, url: str, request: ExtractionRequest, limits: Limits, activity: Activity) -> Ending:
        """Has a server run over ids and store their hidden states, which may still be on their way when it answers.

        Raises InterruptionError.
        """
        reader = TokenReader(request.prompt)
        phases = Phases(limits, activity, asyncio.get_running_loop().time())
        async with self._post(url, request, phases) as response:
            reader.whole(await response.read())
        return _ending(reader, phases)

    async def next_logprobs(
        self, url: str, model: str, prompt: list[int], count: int = 20, seconds: float = _LOGPROBS_SECONDS
    ) -> dict[int, float]:
        """Log-probabilities, in nats, of the `count` most probable ids after `prompt`. Raises EndpointError."""
        choice = await self._scored(url, model, prompt, seconds, logprobs=count, return_tokens_as_token_ids=True)
        try:
            (found,) = choice["logprobs"]["top_logprobs"]
            return {int(token.removeprefix("token_id:")): float(value) for token, value in found.items()}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise EndpointError(f"{url} does not return log-probabilities by id: it must be a vLLM") from error

    async def prompt_logprobs(
        self, url: str, model: str, prompt: list[int], seconds: float = _LOGPROBS_SECONDS
    ) -> list[tuple[float, int]]:
        """For each id of `prompt` but the first: its log-probability in nats, and the id that was the most probable.

        Raises EndpointError.
        """
        choice = await self._scored(url, model, prompt, seconds, prompt_logprobs=1)
        try:
            return [
                (
                    float(found[str(index)]["logprob"]),
                    int(max(found, key=lambda name, at=found: at[name]["logprob"])),  # type: ignore[misc]
                )
                for index, found in zip(prompt[1:], choice["prompt_logprobs"][1:], strict=True)
            ]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise EndpointError(f"{url} does not return log-probabilities of the prompt: it must be a vLLM") from error

    async def _scored(self, url: str, model: str, prompt: list[int], seconds: float, **asked: Any) -> dict[str, Any]:
        """The one choice of a greedy request for one token."""
        body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0, **asked}
        return await self._choice(f"{url.rstrip('/')}/v1/completions", body, seconds)

    async def _choice(self, address: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        with _reach(address):
            timeout = aiohttp.ClientTimeout(total=seconds)
            async with self._session.post(address, json=body, timeout=timeout, allow_redirects=False) as response:
                status, answer = response.status, await response.read()
        if status != 200:
            raise EndpointError(f"{address} answers HTTP {status}{_said(answer)}")
        try:
            choice: dict[str, Any] = orjson.loads(answer)["choices"][0]
        except (orjson.JSONDecodeError, LookupError, TypeError) as error:
            raise EndpointError(f"{address} does not answer as a completion: it must be a vLLM") from error
        return choice

    async def _stream(
        self, url: str, request: Request, reader: StreamReader, on_ids: Callable[[Ids], None], phases: Phases
    ) -> Ending:
        time = asyncio.get_running_loop().time
        async with self._post(url, request, phases) as response:
            content, progress, chunks = response.content, 0, 0
            while not reader.ended:
                data = await content.readany()
                if not data:
                    reader.close("the stream ends without a finish_reason")
                    break
                ids = reader.feed(data)
                if reader.progress != progress:
                    phases.tokens(reader.progress - progress, reader.chunks - chunks, time())
                    progress, chunks = reader.progress, reader.chunks
                if ids:
                    on_ids(ids)
            ending = _ending(reader, phases)
            with suppress(TimeoutError, aiohttp.ClientError):
                async with asyncio.timeout(_TAIL_SECONDS):
                    while await content.readany():
                        pass
        return ending

    @asynccontextmanager
    async def _post(self, url: str, request: Request, phases: Phases) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Content-Type": "application/json"}
        if request.request_id:
            headers["X-Request-Id"] = request.request_id
        phases.activity.streams += 1
        try:
            async with asyncio.timeout(None) as scope:
                with _watched(phases, scope):
                    async with self._session.post(
                        url.rstrip("/") + request.path,
                        data=orjson.dumps(request.body()),
                        headers=headers,
                        timeout=aiohttp.ClientTimeout(total=None, connect=phases.limits.connect or None),
                        allow_redirects=False,
                    ) as response:
                        if response.status != 200:
                            raise by_status(response.status, _said(await response.content.read(_ERROR_BYTES)))
                        yield response
        except TimeoutError as error:
            phase = phases.expired or Phase.CONNECT
            raise InterruptionError(_CAUSES[phase], f"the limit timeouts.{phase.value} is over") from error
        except (aiohttp.ClientError, OSError) as error:
            raise InterruptionError(pb.CAUSE_CONNECTION, f"the connection fails: {plain(error)}") from error
        finally:
            phases.activity.streams -= 1

    async def _get(self, address: str, seconds: float) -> tuple[int, bytes]:
        with _reach(address):
            timeout = aiohttp.ClientTimeout(total=seconds)
            async with self._session.get(address, timeout=timeout, allow_redirects=False) as response:
                return response.status, await response.read()


async def probe(url: str, api_key: str = "") -> ServerInfo:
    """Asks one server what it is, with a client of its own."""
    async with VllmClient(api_key) as client:
        return await client.probe(url)


@contextmanager
def _watched(phases: Phases, scope: asyncio.Timeout) -> Iterator[None]:
    """Ends `scope` when a phase takes too long."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        again = phases.check(loop.time())
        if phases.expired is not None:
            scope.reschedule(loop.time())
        elif again is not None:
            timer = loop.call_at(again, look)

    look()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def _ending(reader: StreamReader, phases: Phases) -> Ending:
    if reader.interruption is not None:
        raise reader.interruption
    now = asyncio.get_running_loop().time()
    first = now if phases.first_token is None else phases.first_token
    return Ending(reader.finish_reason, reader.stop_reason, first - phases.sent, now - phases.sent)


@contextmanager
def _reach(address: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise EndpointError(f"{address} does not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EndpointError(f"{address} cannot be reached: {plain(error)}") from error


def _said(body: bytes) -> str:
    """What an error body says, for the end of a sentence."""
    try:
        message = orjson.loads(body)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = body.decode(errors="replace")
    text = plain(message)
    return f": {text}" if text else ""


def _version(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["version"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
