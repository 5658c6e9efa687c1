"""The extractor as a process: the objects of a run, none of them twice, and an honest exit status."""

import asyncio
import os
import signal
import sys

import pytest
import torch

from eyas.dispatch.v1 import dispatch_pb2, dispatch_pb2_grpc
from eyas.errors import InputError
from eyas.extractor.model import Model
from eyas.rpc.channels import make_server
from eyas.storage import hidden_states, hidden_states_check
from eyas.storage.objects import open_store
from support.training_run import LAYER_IDS, make_model, make_run

TOLERANCE = 1e-5


class Dispatcher(dispatch_pb2_grpc.DispatchServicer):
    """Keeps what is reported, and may end who reports."""

    def __init__(self):
        self.reports = []
        self.end = lambda: None

    async def ReportJob(self, request, context):
        self.reports.append(request)
        self.end()
        return dispatch_pb2.ReportJobResponse()


@pytest.fixture
async def dispatcher(tmp_path):
    server, servicer = make_server(), Dispatcher()
    dispatch_pb2_grpc.add_DispatchServicer_to_server(servicer, server)
    servicer.address = f"unix:{tmp_path}/d.sock"
    server.add_insecure_port(servicer.address)
    await server.start()
    yield servicer
    await server.stop(0)


@pytest.fixture
def run(tmp_path):
    """A run with answers, and the objects that it should have, removed from it."""
    make_run(tmp_path / "out", make_model(tmp_path / "model"))
    folder = tmp_path / "out" / "r" / "hidden_states"
    objects = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        path.unlink()
    return folder, objects


async def start(folder, dispatcher=None):
    environment = os.environ | {"EYAS_STORAGE_URI": str(folder.parents[1]), "EYAS_RUN": "r", "OMP_NUM_THREADS": "1"}
    if dispatcher is not None:
        environment["EYAS_DISPATCHER"] = dispatcher.address
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "eyas.extractor", env=environment, stderr=asyncio.subprocess.PIPE
    )


def values(data):
    stored = hidden_states.parse(data, "it")
    hidden_states_check.check(stored, stored.token_ids, LAYER_IDS, "it")
    return torch.frombuffer(bytearray(stored.values), dtype=torch.float32)


async def test_every_object_is_written_once(run, dispatcher):
    folder, objects = run
    process = await start(folder, dispatcher)
    _, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    assert {path.name for path in folder.iterdir()} == objects.keys()
    for name, expected in objects.items():
        data = (folder / name).read_bytes()
        start_of_states = len(data) - len(hidden_states.parse(data, name).values)
        assert data[:start_of_states] == expected[:start_of_states]
        torch.testing.assert_close(values(data), values(expected), rtol=TOLERANCE, atol=TOLERANCE)
    last = dispatcher.reports[-1]
    assert (last.run, last.progress.job) == ("r", "extractor")
    assert (last.progress.done, last.progress.total) == (len(objects), len(objects))

    changed = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    removed = min(objects)
    (folder / removed).unlink()
    process = await start(folder)
    await process.communicate()
    assert process.returncode == 0
    assert {p.name for p in folder.iterdir() if p.stat().st_mtime_ns != changed[p.name]} == {removed}


async def test_interrupted_it_does_not_look_complete(run, dispatcher):
    folder, objects = run
    process = await start(folder, dispatcher)
    dispatcher.end = lambda: process.send_signal(signal.SIGTERM)
    await process.communicate()
    assert process.returncode == 75
    assert len(list(folder.iterdir())) < len(objects)


async def test_an_object_of_other_settings_is_not_replaced(run):
    folder, objects = run
    (folder / min(objects)).write_bytes(b"older")
    process = await start(folder)
    _, error = await process.communicate()
    assert process.returncode == 1
    assert "start another run" in error.decode()
    assert (folder / min(objects)).read_bytes() == b"older"


def test_layers_that_are_not_there_are_refused(tmp_path):
    make_model(tmp_path / "model")
    for layer_ids in ((0, 1), (1, 7), ()):
        with pytest.raises(InputError, match="its layers are 1 to 6"):
            Model(str(tmp_path / "model"), "auto", layer_ids)
    with pytest.raises(InputError, match="cannot load"):
        Model(str(tmp_path / "nothing"), "auto", (1,))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_states_have_the_dtype_of_the_model(tmp_path, dtype):
    model = Model(str(make_model(tmp_path / "model")), dtype, (2, 6))
    data = bytes(model.extract([3, 4, 5]))
    stored = hidden_states.parse(data, "it")
    assert (stored.dtype, stored.shape, stored.layer_ids) == (dtype, (3, 2, 32), (2, 6))
    assert len(data) == model.object_size(3)
    open_store("memory:///").put_blocking("a", memoryview(data))
