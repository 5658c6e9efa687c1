"""The import as a whole: order, duplicates, hold-out, counts."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.datasets import Sample, load, load_for, sample_id
from eyas.datasets import importing as module
from eyas.errors import InputError, StorageFullError
from eyas.run import spec as run_spec
from eyas.run.v1 import run_pb2


def write(path: Path, values: list[Any]) -> str:
    path.write_text("".join(json.dumps({"prompt": value}) + "\n" for value in values))
    return str(path)


def texts(samples: list[Sample]) -> list[str]:
    return [json.loads(sample.messages)[-1]["content"] for sample in samples]


def samples_of(*sources: str, **settings: Any) -> list[Sample]:
    with load(sources, **settings) as imported:
        return list(imported)


def test_samples_know_where_they_are_from(tmp_path: Path):
    first, second = write(tmp_path / "a.jsonl", ["x", "y"]), write(tmp_path / "b.jsonl", ["y", "z"])
    with load([first, second]) as imported:
        samples = list(imported)
        assert (len(imported), imported.train, imported.holdout, imported.duplicates) == (3, 3, 0, 1)
    assert texts(samples) == ["x", "y", "z"]
    assert [sample.source for sample in samples] == [first, first, second]
    assert [sample.position for sample in samples] == [0, 1, 2]
    assert samples[0] == Sample(
        0, sample_id([{"role": "user", "content": "x"}]), '[{"content":"x","role":"user"}]', first, "train", 1
    )


def test_every_row_is_accounted_for(tmp_path: Path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "x"}\n{"prompt": 1}\nnonsense\n{"prompt": "x"}\n{"prompt": " "}\n{"prompt": 2}\n{"pr')
    with load([str(path)]) as imported:
        assert (len(imported), imported.duplicates) == (1, 1)
        assert imported.rejected_counts == {"empty": 1, "not_json": 2, "wrong_type": 2}
        assert [(row["line"], row["reason"]) for row in imported.rejected] == [
            (2, "wrong_type"),
            (3, "not_json"),
            (5, "empty"),
            (6, "wrong_type"),
            (7, "not_json"),
        ]
        assert {row["source"] for row in imported.rejected} == {str(path)}


def test_turns_are_counted(tmp_path: Path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"turns": ["a", "b", "c"]}\n{"turns": ["a"]}\n')
    with load([str(path)], turns="all") as imported:
        assert [sample.turns for sample in imported] == [3, 1]
        assert imported.generations == 4
    with load([str(path)]) as imported:
        assert (len(imported), imported.duplicates, imported.generations) == (1, 1, 1)


def test_max_samples_limits_what_is_trained_on(tmp_path: Path):
    path = write(tmp_path / "q.jsonl", list("abcdefgh"))
    assert texts(samples_of(path, max_samples=3)) == ["a", "b", "c"]
    held = samples_of(path, max_samples=3, holdout=2)
    assert [sample.split for sample in held] == ["train"] * 3 + ["holdout"] * 2
    assert len({sample.sample_id for sample in held}) == 5
    assert len(samples_of(path, max_samples=100)) == 8


def test_a_shuffle_is_by_its_seed_and_loses_nothing(tmp_path: Path):
    path = write(tmp_path / "q.jsonl", list(range(0)) + [f"q{n}" for n in range(50)])
    plain, one, same, two = (samples_of(path, shuffle_seed=seed) for seed in (None, 1, 1, 2))
    assert one == same
    assert len({tuple(texts(samples)) for samples in (plain, one, two)}) == 3
    assert sorted(texts(plain)) == sorted(texts(one)) == sorted(texts(two))


def test_a_shuffle_of_the_parts_is_a_shuffle_of_the_whole(tmp_path: Path):
    """The order depends on the samples alone, not on the order of the files."""
    a, b = write(tmp_path / "a.jsonl", ["1", "2", "3"]), write(tmp_path / "b.jsonl", ["4", "5"])
    assert texts(samples_of(a, b, shuffle_seed=0)) == texts(samples_of(b, a, shuffle_seed=0))


def test_held_out_samples_stay_held_out_whatever_the_order(tmp_path: Path):
    path = write(tmp_path / "q.jsonl", [f"q{n}" for n in range(50)])

    def held(**settings: Any) -> set[str]:
        return {sample.sample_id for sample in samples_of(path, holdout=5, **settings) if sample.split == "holdout"}

    assert len(held()) == 5
    assert held() == held(shuffle_seed=3) == held(max_samples=1)
    everything = samples_of(path, holdout=5)
    assert len(everything) == 50
    assert [sample.split for sample in everything] == ["train"] * 45 + ["holdout"] * 5


def test_a_row_in_both_files_is_held_out_only(tmp_path: Path):
    train, held = write(tmp_path / "t.jsonl", ["x", "y"]), write(tmp_path / "h.jsonl", ["y", "z"])
    with load([train], holdout_sources=[held]) as imported:
        samples = list(imported)
        assert imported.duplicates == 1
    assert [(sample.split, text) for sample, text in zip(samples, texts(samples), strict=True)] == [
        ("train", "x"),
        ("holdout", "y"),
        ("holdout", "z"),
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.integers(0, 12) | st.none(), min_size=1, max_size=30),
    held=st.lists(st.integers(0, 12), max_size=5),
    holdout=st.integers(0, 4),
    maximum=st.integers(0, 8),
    seed=st.none() | st.integers(0, 9),
)
def test_counts_add_up(tmp_path: Path, rows: Any, held: Any, holdout: int, maximum: int, seed: int | None):
    path = write(tmp_path / "q.jsonl", [None if row is None else f"q{row}" for row in rows])
    others = [write(tmp_path / "h.jsonl", [f"q{row}" for row in held])] if held else []
    try:
        imported = load([path], holdout_sources=others, holdout=holdout, max_samples=maximum, shuffle_seed=seed)
    except InputError:
        assert len({row for row in rows if row is not None} - set(held)) <= holdout
        return
    with imported:
        samples = list(imported)
    distinct = {row for row in rows if row is not None} | set(held)
    split = {kind: [sample for sample in samples if sample.split == kind] for kind in ("train", "holdout")}
    assert len({sample.sample_id for sample in samples}) == len(samples) == len(imported)
    assert len(split["holdout"]) == imported.holdout == len(set(held)) + holdout
    trainable = len(distinct) - imported.holdout
    assert len(split["train"]) == imported.train == (min(trainable, maximum) if maximum else trainable)
    assert len(imported.rejected) + imported.duplicates + len(distinct) == len(rows) + len(held)
    assert set(held) <= {int(text[1:]) for text in texts(split["holdout"])}


def test_the_hash_is_over_ids_and_splits_in_order(tmp_path: Path):
    path = write(tmp_path / "q.jsonl", ["x", "y"])
    with load([path], holdout=1) as imported:
        lines = "".join(f"{sample.sample_id} {sample.split}\n" for sample in imported)
        assert imported.hash == hashlib.sha256(lines.encode()).hexdigest()
    hashes = set()
    for settings_ in ({}, {"holdout": 1}, {"max_samples": 1}, {"shuffle_seed": 2}):
        with load([path], **settings_) as imported:
            hashes.add(imported.hash)
    assert len(hashes) >= 3


def test_a_spec_is_filled(tmp_path: Path):
    path = write(tmp_path / "q.jsonl", ["x", "x", 3, "y", "z"])
    spec = run_spec.build(
        {
            "name": "demo",
            "model": {"uri": "m"},
            "dataset": {"sources": [path], "holdout": 1, "turns": "all", "shuffleSeed": 0},
        }
    )
    with load_for(spec.dataset) as imported:
        imported.fill(spec.dataset)
        imported.fill(spec.dataset)
        assert (imported.train, imported.holdout) == (2, 1)
    dataset = spec.dataset
    assert (dataset.samples, dataset.generations, dataset.duplicates) == (3, 3, 1)
    assert dict(dataset.rejected) == {"wrong_type": 1}
    assert dataset.hash == imported.hash
    again = run_pb2.Dataset(sources=[path], max_samples=1)
    with load_for(again) as imported:
        assert texts(list(imported)) == ["x"]


def test_samples_can_be_read_many_times_also_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_IN_MEMORY", 100)
    values = [f"{n} {'x' * 50}" for n in range(40)]
    with load([write(tmp_path / "q.jsonl", values)]) as imported:
        assert texts(list(imported)) == texts(list(imported)) == values


@pytest.mark.parametrize(
    ("values", "settings_", "says"),
    [
        ([], {}, "no row of .* can be used .there is none.*each needs what a user asks"),
        ([1, " "], {}, r"no row of .* can be used .empty 1, wrong_type 1; first: line 1: prompt is int.: each needs"),
        (["x"], {"holdout": 1}, "all 1 usable samples are held out.* lower the holdout of 1"),
    ],
)
def test_nothing_usable_is_an_error_that_says_why(tmp_path: Path, values: Any, settings_: Any, says: str):
    with pytest.raises(InputError, match=says):
        load([write(tmp_path / "q.jsonl", values)], **settings_)


def test_no_dataset_at_all():
    with pytest.raises(InputError, match="--dataset"):
        load([])


def test_no_room_for_the_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_IN_MEMORY", 10)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageFullError, match="gone: make room there, or set TMPDIR"):
        load([write(tmp_path / "q.jsonl", ["x" * 100])])
