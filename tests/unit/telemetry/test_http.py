import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from eyas.errors import InputError
from eyas.telemetry import http


async def _get(address, path):
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as reply:
        return reply.status, await reply.text()


async def test_serves_metrics_of_the_registry_it_was_given():
    registry = CollectorRegistry()
    Counter("eyas_things", "Things.", registry=registry).inc(3)
    async with http.serve("127.0.0.1:0", registry, lambda: True) as address:
        status, text = await _get(address, "/metrics")
    assert status == 200
    assert "eyas_things_total 3.0" in text


async def test_ready_follows_the_service_and_health_does_not():
    ready = False
    async with http.serve("127.0.0.1:0", CollectorRegistry(), lambda: ready) as address:
        assert await _get(address, "/health") == (200, "ok\n")
        assert (await _get(address, "/ready"))[0] == 503
        ready = True
        assert (await _get(address, "/ready"))[0] == 200


async def test_a_taken_port_is_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="choose another port"):
            async with http.serve(listen, CollectorRegistry(), lambda: True):
                pass


@pytest.mark.parametrize(("listen", "parts"), [("0.0.0.0:9090", ("0.0.0.0", 9090)), ("[::1]:0", ("::1", 0))])
def test_addresses_are_split(listen, parts):
    assert http.split(listen) == parts


@pytest.mark.parametrize("listen", ["9090", "host:", "host:http", "host:70000"])
def test_what_is_no_address_is_refused(listen):
    with pytest.raises(InputError, match="host:port"):
        http.split(listen)
