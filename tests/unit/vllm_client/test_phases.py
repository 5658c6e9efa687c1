"""Limits on time, by phase, with clocks that start when a request is sent."""

from eyas.vllm.phases import Activity, Limits, Phase, Phases


def make(activity: Activity | None = None, **limits: float) -> Phases:
    return Phases(Limits(**limits), activity or activity_of(1), now=100.0)


def activity_of(streams: int) -> Activity:
    activity = Activity()
    activity.streams = streams
    return activity


def test_without_limits_nothing_is_ever_checked() -> None:
    assert make().check(1e9) is None


def test_first_token() -> None:
    phases = make(first_token=60)
    assert phases.check(100) == 160
    assert phases.check(159) == 160
    assert phases.check(160) is None
    assert phases.expired is Phase.FIRST_TOKEN


def test_first_token_is_over_once_it_came() -> None:
    phases = make(first_token=60)
    phases.tokens(1, 1, 159)
    assert phases.check(1000) is None
    assert phases.expired is None
    assert phases.first_token == 159


def test_a_stall_of_the_only_stream() -> None:
    phases = make(first_token=600, stall=10)
    assert phases.check(100) == 110  # before the first token too: nothing else would set the timer
    phases.tokens(1, 1, 101)
    assert phases.check(110) == 111
    assert phases.check(111) is None
    assert phases.expired is Phase.STALL


def test_a_stall_is_measured_by_the_tokens_of_others() -> None:
    activity = activity_of(2)
    hung, lively = make(activity, stall=10), make(activity, stall=10)
    hung.tokens(1, 1, 101)
    lively.tokens(1, 1, 105)  # then the server makes a pause, as for a long prefill
    assert hung.check(125) == 127.5
    assert hung.expired is None
    lively.tokens(1, 1, 130)
    assert hung.check(130) is None
    assert hung.expired is Phase.STALL
    lively.check(139)
    assert lively.expired is None


def test_a_server_that_is_silent_to_all_has_five_times_as_long() -> None:
    phases = make(activity_of(2), stall=10)
    phases.tokens(1, 1, 101)
    phases.check(150.9)
    assert phases.expired is None
    phases.check(151)
    assert phases.expired is Phase.STALL


def test_total() -> None:
    phases = make(first_token=600, total=300)
    phases.tokens(1, 1, 399)
    assert phases.check(399) == 400
    assert phases.check(400) is None
    assert phases.expired is Phase.TOTAL


def test_activity_counts_for_all_streams() -> None:
    activity = activity_of(2)
    make(activity).tokens(3, 1, 101)
    make(activity).tokens(2, 1, 102)
    assert (activity.chunks, activity.tokens, activity.last_token) == (2, 5, 102)
