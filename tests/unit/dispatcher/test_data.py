"""What the dispatcher reads: samples, answers, sequences; and what it pins a run to."""

import pytest

from eyas.dispatcher import samples as samples_module
from eyas.dispatcher.answers import Answers, AnswersFormat, Contents
from eyas.dispatcher.core.items import State
from eyas.dispatcher.endpoints import check
from eyas.dispatcher.extracting import index_of
from eyas.dispatcher.samples import Samples, write
from eyas.errors import DataError, EndpointError
from eyas.run import spec as specs
from eyas.storage import hidden_states
from eyas.storage.layout import RunLayout
from eyas.storage.objects import open_store
from eyas.storage.tables import GENERATIONS
from eyas.vllm.client import ServerInfo
from support.rows import generation, sample

LAYOUT = RunLayout("r")


async def rows(*turns):
    for position, count in enumerate(turns):
        yield sample(position, count)


async def test_samples_are_found_by_position_across_parts(monkeypatch):
    monkeypatch.setattr(samples_module, "PART_ROWS", 2)
    monkeypatch.setattr(samples_module, "_CACHED_PARTS", 2)
    store = open_store("memory:///")
    assert await write(store, LAYOUT, rows(1, 3, 1, 1, 2)) == (5, 8)
    found = Samples(store, LAYOUT, 5)
    assert await found.turns() == [1, 3, 1, 1, 2]
    assert not found.loaded(4)
    assert {position: row["sample_id"] for position, row in (await found.rows([4, 0, 2, 4])).items()} == {
        0: "id0",
        2: "id2",
        4: "id4",
    }
    with pytest.raises(DataError, match="position 1 where 0 is next"):
        await write(store, LAYOUT, _skipping())


async def _skipping():
    yield sample(1)


def test_history_has_the_answers_between_the_questions():
    contents = Contents()
    contents.keep(4, 0, "first")
    contents.keep(4, 1, "second")
    row = sample(4, 3)
    assert [message["content"] for message in contents.history(row, 0)] == ["be brief", "4.0"]
    assert [(message["role"], message["content"]) for message in contents.history(row, 2)] == [
        ("system", "be brief"),
        ("user", "4.0"),
        ("assistant", "first"),
        ("user", "4.1"),
        ("assistant", "second"),
        ("user", "4.2"),
    ]


def test_answers_are_read_without_their_ids():
    data = AnswersFormat().encode(Answers([generation(3), generation(5, 1, ids=range(10))]), 7, "me")
    answers, epoch, nonce = AnswersFormat(contents=True).decode(data)
    assert (epoch, nonce) == (7, "me")
    assert (list(answers.positions), list(answers.turns), answers.tokens) == ([3, 5], [0, 1], 12)
    assert list(answers.contents) == ["answer", "answer"]


async def test_sequences_are_joined_and_those_that_are_there_are_found():
    store = open_store("memory:///")
    await write(store, LAYOUT, rows(1, 2, 1))
    answers = [generation(1, 0, (1, 2), (3,)), generation(0, 0, (9,), (8, 7)), generation(1, 1, (1, 2, 3, 4), (5, 6))]
    await store.put(f"{LAYOUT.generations}/000000.parquet", GENERATIONS.encode(answers[:2]))
    await store.put(f"{LAYOUT.generations}/000001.parquet", GENERATIONS.encode(answers[2:]))
    spec = specs.build(
        {
            "name": "r",
            "model": {"uri": "/m", "fingerprint": {"context": 6, "hiddenSize": 8, "dtype": "float16"}},
            "hiddenStates": {"layerIds": [1, 2, 3, 4]},
            "dataset": {"samples": 3, "generations": 4},
        }
    )
    key = LAYOUT.hidden_states(hidden_states.key([9, 8, 7]))
    await store.put(key, b"\0" * hidden_states.object_size(3, 4, 8, "float16"))
    found = await index_of(store, LAYOUT, spec, Samples(store, LAYOUT, 3))
    assert [found.items.state(index) for index in range(4)] == [State.OK, State.ABSENT, State.NEW, State.ABSENT]
    assert found.tokens == {0: 3, 2: 5}, "cut to context - 1"
    assert found.keys[2].hex() == hidden_states.key([1, 2, 3, 4, 5])
    assert found.part == {0: 0, 2: 1}
    await store.put(key, b"short")
    found = await index_of(store, LAYOUT, spec, Samples(store, LAYOUT, 3))
    assert found.items.state(0) is State.NEW


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (ServerInfo(("other",), "/m", 6, ""), "serves other, not m"),
        (ServerInfo(("m",), "/n", 6, ""), "from /n"),
        (ServerInfo(("m",), "/m", 7, ""), "context of 7"),
    ],
)
def test_a_server_that_differs_is_refused(server, said):
    spec = specs.build(
        {"name": "r", "model": {"uri": "/m", "servedName": "m", "fingerprint": {"root": "/m", "context": 6}}}
    )
    check("http://a", ServerInfo(("m",), "/m", 6, ""), spec)
    check("http://a", ServerInfo(("m",), "", 0, ""), spec)
    with pytest.raises(EndpointError, match=said):
        check("http://a", server, spec)
