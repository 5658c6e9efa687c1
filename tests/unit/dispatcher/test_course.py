"""The control log, folded."""

from datetime import UTC, datetime

import pytest

from eyas.dispatcher.core.course import Course, check_set
from eyas.dispatcher.core.processes import LIMIT, Process, ProcessState
from eyas.errors import DataError, InputError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2


def course(*entries, until="STAGE_EVALUATE"):
    result = Course(specs.build({"name": "r", "model": {"uri": "/m"}}))
    for second, entry in enumerate([{"proceed": {"until": until}}, *entries]):
        result.apply({"at": datetime.fromtimestamp(1000 + second, UTC).isoformat(), **entry})
    return result


def test_stages_follow_each_other():
    assert course().stage == run_pb2.STAGE_GENERATE
    assert course({"entered": "extract"}).stage == run_pb2.STAGE_EXTRACT
    over = course({"entered": "extract"}, {"entered": "done"}, until="STAGE_EXTRACT")
    assert (over.stage, over.finished) == (run_pb2.STAGE_DONE, True)
    over.apply({"at": "2026-01-01T00:00:00+00:00", "proceed": {"until": "STAGE_TRAIN"}})
    assert (over.stage, over.finished) == (run_pb2.STAGE_TRAIN, False)


def test_time_is_counted_by_stage():
    result = course({"entered": "extract"}, {"pause": {}}, {"entered": "train"})
    assert result.seconds(1010.0) == {"generate": 1.0, "extract": 2.0, "train": 7.0}


def test_other_settings_take_a_run_back_to_the_stage_that_they_concern():
    done = [{"entered": name} for name in ("extract", "train", "evaluate", "done")]
    for path, value, stage in (
        ("generation.concurrency", "3", run_pb2.STAGE_DONE),
        ("evaluation.maxPrompts", "3", run_pb2.STAGE_EVALUATE),
        ("training.lr", "0.5", run_pb2.STAGE_TRAIN),
        ("hiddenStates.maxTokens", "99", run_pb2.STAGE_EXTRACT),
    ):
        assert course(*done, {"set": {"values": {path: value}}}).stage == stage
    assert course(*done, {"retry": {}, "failures": 4}).stage == run_pb2.STAGE_GENERATE


def test_pause_resume_cancel_and_endpoints():
    paused = course({"pause": {"reason": "lunch"}})
    assert (paused.paused, paused.reason) == (True, "lunch")
    assert not course({"pause": {}}, {"resume": {}}).paused
    assert course({"cancel": {}}).finished
    added = course({"addEndpoint": {"endpoint": {"url": "http://b"}}})
    assert [endpoint.url for endpoint in added.spec.endpoints] == ["http://b"]
    with pytest.raises(DataError, match="frobnicate"):
        course({"frobnicate": {}})


def test_what_would_mix_two_kinds_of_data_cannot_be_set():
    spec = specs.build({"name": "r", "model": {"uri": "/m"}})
    check_set({"generation.concurrency": "5"}, spec)
    for path in ("hiddenStates.layerIds", "hiddenStates", "generation.protocol", "model.uri"):
        with pytest.raises(InputError, match="cannot change"):
            check_set({path: "[1, 2, 3, 4]"}, spec)


def test_a_process_is_wanted_again_later_and_later_and_then_no_more():
    process, now, waits = Process("p"), 0.0, []
    while not process.given_up:
        process.told(process.generation, ProcessState.EXITED, "", 1, "why", now)
        began = now
        while not process.given_up and not process.again(now):
            now += 0.5
        waits.append(now - began)
    assert waits == [1.0, 2.0, 4.0, 8.0, 0.0]
    assert process.ends == LIMIT
    process.progressed()
    assert not process.given_up


def test_what_is_said_of_an_earlier_generation_is_no_news():
    process = Process("p", generation=2)
    assert not process.told(1, ProcessState.EXITED, "", 1, "", 0.0)
    assert process.told(3, ProcessState.READY, "http://a", 0, "", 0.0), "another dispatcher wanted it again"
    assert (process.generation, process.url) == (3, "http://a")
