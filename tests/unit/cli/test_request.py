import json

import pytest

from eyas.cli.place import Place
from eyas.cli.request import changes
from eyas.errors import InputError
from eyas.run import spec as specs

PLACE = Place("/out", "demo", None)


def spec(**more):
    return specs.build({"name": "demo", "model": {"uri": "/m", "fingerprint": {"context": 100, "root": "/m"}}} | more)


def test_the_same_command_changes_nothing():
    assert changes(spec(), spec(), PLACE) == {}


def test_what_may_change_on_the_way_is_changed():
    asked = spec(generation={"concurrency": 8}, timeouts={"stall": 9}, endpoints=[{"url": "http://b"}])
    found = {path: json.loads(text) for path, text in changes(asked, spec(), PLACE).items()}
    assert found == {"generation.concurrency": 8, "timeouts.stall": 9, "endpoints": [{"url": "http://b"}]}
    assert specs.differences(specs.change(spec(), changes(asked, spec(), PLACE)), asked) == []


@pytest.mark.parametrize(
    "more",
    [
        {"generation": {"maxTokens": 5}},
        {"generation": {"sampling": {"temperature": 0}}},
        {"dataset": {"hash": "other"}},
        {"model": {"uri": "/other"}},
    ],
)
def test_another_run_is_refused_with_what_differs(more):
    with pytest.raises(InputError, match=r"/out/demo holds a run of another spec .*choose another --output"):
        changes(spec(**more), spec(), PLACE)


def test_a_model_that_changed_under_the_run_is_refused():
    other = spec(model={"uri": "/m", "fingerprint": {"context": 200, "root": "/m"}})
    with pytest.raises(InputError, match=r"model has changed .*context: 200, there 100"):
        changes(other, spec(), PLACE)
