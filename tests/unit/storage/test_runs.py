"""The spec of a run as it is now."""

import pytest

from eyas.errors import DataError, InputError
from eyas.run import spec as specs
from eyas.storage.layout import RunLayout
from eyas.storage.log import Log
from eyas.storage.objects import open_store
from eyas.storage.runs import read_spec
from eyas.storage.tables import JsonFormat


async def test_every_set_is_applied_in_order():
    store, layout = open_store("memory:///"), RunLayout("demo")
    spec = specs.build({"name": "demo", "model": {"uri": "/m"}})
    await store.create(layout.spec, specs.to_json(spec))
    assert await read_spec(store, "demo") == spec
    log = Log(store, layout.control, ".json", JsonFormat(), 1, "n")
    for values in ({"timeouts.stall": "5", "training.lr": "0.5"}, {"timeouts.stall": "7"}):
        await log.append({"at": "2026-01-01T00:00:00Z", "set": {"values": values}})
        await log.append({"at": "2026-01-01T00:00:00Z", "entered": "extract"})
    now = await read_spec(store, "demo")
    assert (now.timeouts.stall, now.training.lr) == (7.0, 0.5)


async def test_a_run_that_is_not_there():
    with pytest.raises(InputError, match="there is no run 'demo'"):
        await read_spec(open_store("memory:///"), "demo")


@pytest.mark.parametrize("data", [b"{", b'{"nome": 1}'])
async def test_a_spec_that_cannot_be_read(data: bytes):
    store = open_store("memory:///")
    await store.create(RunLayout("demo").spec, data)
    with pytest.raises(DataError, match=r"demo/spec\.json is not a spec"):
        await read_spec(store, "demo")
