"""The boundary to a model server: its HTTP errors become EndpointError here, and nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from eyas.errors import EndpointError
from eyas.vllm import metrics

_KEEPALIVE_SECONDS = 3.0  # vLLM closes an idle connection after 5 s: a client that keeps it longer meets a closed one
_PROBE_SECONDS = 10.0
_SAID = 1000
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
            raise EndpointError(f"{url}/v1/models answers HTTP {status}{_said(body)}{_REMEDIES.get(status, '')}")
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
def _reach(address: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise EndpointError(f"{address} does not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EndpointError(f"{address} cannot be reached: {' '.join(str(error).split())}") from error


def _said(body: bytes) -> str:
    """What an error body says, for the end of a sentence."""
    try:
        value = orjson.loads(body)
        message = value["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = body[:_SAID].decode(errors="replace")
    text = " ".join(str(message).split())[:_SAID]
    return f" ({text})" if text else ""


def _version(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["version"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
