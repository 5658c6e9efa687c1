from eyas.cli.estimate import Estimate, Probe, interrupted, size
from eyas.run import spec as specs


def estimate(protocol="tokens", **more):
    spec = specs.build(
        {
            "name": "demo",
            "model": {"uri": "/m", "fingerprint": {"context": 1100, "hiddenSize": 64, "dtype": "float16"}},
            "generation": {"maxTokens": 1000, "protocol": protocol},
            "dataset": {"generations": "10"},
            "hiddenStates": {"layerIds": [1, 2, 3, 4]},
        }
    )
    return Estimate(spec, [50, 150], **more)


def test_without_a_probe_the_limit_counts():
    found = estimate()
    assert found.tokens == 10_000
    assert "unknown" in dict(found.facts())["time to generate"]


def test_a_probe_gives_rate_and_length_unless_it_was_cut():
    assert estimate(probe=Probe(8, 100.0, 200.0, 0)).tokens == 2_000
    assert estimate(probe=Probe(8, 100.0, 200.0, 3)).tokens == 10_000
    assert dict(estimate(probe=Probe(8, 100.0, 200.0, 0)).facts())["time to generate"].startswith("about 20 s")


def test_what_is_given_beats_what_is_measured():
    found = estimate(probe=Probe(8, 100.0, 200.0, 0), rate=50.0, mean_length=500)
    assert found.tokens == 5_000
    assert "1 min 40 s at 50 tokens/s" in dict(found.facts())["time to generate"]


def test_hidden_states_take_layers_times_width_times_bytes():
    found = estimate(mean_length=100)
    assert found.row() == 4 * 64 * 2
    assert found.hidden_states() == 10 * (100 + 100) * 512


def test_prompts_that_leave_too_little_room_are_said():
    assert dict(estimate().facts())["cut by the context"].startswith("50.0%")


def test_an_interrupted_answer():
    assert interrupted(estimate().spec) == "goes on where it was"
    assert "starts again" in interrupted(estimate("chat").spec)


def test_sizes():
    assert [size(count) for count in (5, 2048, 3 * 1024**3, 5 * 1024**4)] == ["5 B", "2 KiB", "3 GiB", "5.0 TiB"]
