"""A call that broke goes on to ask for messages: it must get none, since what it takes counts as said."""

import asyncio

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.generator.core.ledger import Ledger
from eyas.generator.worker import Worker
from eyas.rpc.channels import open_channel


async def test_a_stream_that_is_over_takes_no_messages():
    ledger = Ledger("g", 4)
    async with open_channel("unix:/nowhere") as channel:
        worker = Worker(channel, ledger, None, None)
        over = worker._open_stream = object()
        ledger.open(0.0)
        requests = worker._requests(over)
        assert (await anext(requests)).HasField("hello")
        worker._open_stream = object()
        ledger.open(0.0)
        worker._news.set()
        async with asyncio.timeout(5):
            left = [request async for request in requests]
    assert not any(request.HasField("hello") for request in left)
    assert ledger.take(0.0)[0] == pb.WorkRequest(hello=pb.Hello(generator="g", capacity=4))
