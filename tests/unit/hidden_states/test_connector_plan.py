"""Which requests leave hidden states, and what is refused when a server starts."""

import enum
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from eyas.errors import InputError
from eyas.storage import hidden_states
from eyas.vllm.connector.plan import Plan
from eyas.vllm.connector.settings import check_server, read_settings

Status = enum.Enum(
    "Status",
    "WAITING RUNNING PREEMPTED FINISHED_STOPPED FINISHED_LENGTH_CAPPED FINISHED_ABORTED FINISHED_IGNORED "
    "FINISHED_ERROR FINISHED_REPETITION",
)
IDS = list(range(100, 140))


@dataclass
class Request:
    request_id: str = "r"
    all_token_ids: list[int] = field(default_factory=lambda: [*IDS, 7])
    num_computed_tokens: int = 41
    status: Status = Status.FINISHED_LENGTH_CAPPED
    kv_transfer_params: dict | None = field(default_factory=lambda: params(IDS))


def params(ids, **changes):
    return {"eyas_key": f"demo/hidden_states/{hidden_states.key(ids)}.safetensors", "eyas_rows": len(ids)} | changes


def test_a_finished_request_is_planned_once_with_the_blocks_of_its_rows():
    plan = Plan(16)
    request, blocks = Request(), [4, 9, 2, 8]
    assert plan.add(request, blocks)
    request.all_token_ids.clear()
    blocks.clear()
    (save,) = plan.take()
    assert (save.request_id, save.ids, save.blocks) == ("r", IDS, [4, 9, 2])
    assert plan.take() == []


@pytest.mark.parametrize("status", [s for s in Status if s.name not in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")])
def test_a_request_that_did_not_end_well_leaves_nothing(status):
    plan = Plan(16)
    assert not plan.add(Request(status=status), [1, 2, 3])
    assert plan.take() == []


@pytest.mark.parametrize("wanted", [None, {}, {"other": 1}])
def test_a_request_that_asked_for_nothing_leaves_nothing(wanted):
    assert not Plan(16).add(Request(kv_transfer_params=wanted), [1, 2, 3])


@pytest.mark.parametrize(
    ("request_", "blocks"),
    [
        (Request(num_computed_tokens=39), [1, 2, 3]),
        (Request(), [1, 2]),
        (Request(all_token_ids=IDS), [1, 2, 3]),
        (Request(kv_transfer_params=params(IDS, eyas_rows=0)), [1, 2, 3]),
        (Request(kv_transfer_params=params(IDS, eyas_rows="40")), [1, 2, 3]),
        (Request(kv_transfer_params=params(IDS, eyas_rows=None)), [1, 2, 3]),
    ],
)
def test_rows_without_states_are_refused(request_, blocks):
    plan = Plan(16)
    with pytest.raises(InputError, match="eyas_rows"):
        plan.add(request_, blocks)
    assert plan.take() == []


HASH = hidden_states.key(IDS)


@pytest.mark.parametrize(
    "key",
    [
        f"/etc/{HASH}.safetensors",
        f"../{HASH}.safetensors",
        f"a/../b/{HASH}.safetensors",
        f"a//{HASH}.safetensors",
        f"a/.b/{HASH}.safetensors",
        f"a/{HASH}",
        f"a/{HASH}.safetensors\n",
        f"a\\b/{HASH}.safetensors",
        "a/b.safetensors",
        "",
        None,
        7,
    ],
)
def test_unsafe_keys_are_refused(key):
    with pytest.raises(InputError, match="eyas_key"):
        Plan(16).add(Request(kv_transfer_params=params(IDS, eyas_key=key)), [1, 2, 3])


def test_a_key_of_other_ids_is_refused():
    with pytest.raises(InputError, match="other ids"):
        Plan(16).add(Request(kv_transfer_params=params(IDS[:-1], eyas_rows=40)), [1, 2, 3])


def vllm_config(layer_ids, *, method="extract_hidden_states", role="kv_producer", context_parallel=1):
    hf_config = SimpleNamespace(eagle_aux_hidden_state_layer_ids=layer_ids)
    return SimpleNamespace(
        speculative_config=SimpleNamespace(method=method, draft_model_config=SimpleNamespace(hf_config=hf_config)),
        kv_transfer_config=SimpleNamespace(kv_role=role),
        parallel_config=SimpleNamespace(decode_context_parallel_size=context_parallel),
        model_config=SimpleNamespace(get_total_num_hidden_layers=lambda: 30),
    )


def test_a_server_that_extracts_says_its_layers():
    assert check_server(vllm_config([2, 15, 27, 30])) == (2, 15, 27, 30)
    assert check_server(vllm_config([2, 15]), [2, 15]) == (2, 15)


@pytest.mark.parametrize("layer_ids", [None, [], [0, 2], [2, 2, 3], [3, 2], [2, 31]])
def test_layers_that_vllm_would_choke_on_are_refused(layer_ids):
    with pytest.raises(InputError, match="give layers from 1 to 30"):
        check_server(vllm_config(layer_ids))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (vllm_config([2], method="eagle3"), "--speculative-config"),
        (SimpleNamespace(speculative_config=None, parallel_config=None), "--speculative-config"),
        (vllm_config([2], role="kv_both"), "kv_producer"),
        (vllm_config([2], context_parallel=2), "--decode-context-parallel-size"),
        (vllm_config([2, 4]), r"\[2, 3\] are expected"),
    ],
)
def test_servers_that_cannot_extract_are_refused(config, named):
    with pytest.raises(InputError, match=named):
        check_server(config, [2, 3])


def test_settings():
    assert read_settings({"storage_uri": "out", "upload_threads": 2}).upload_threads == 2
    for wrong, named in (({}, "storage_uri"), ({"storage_uri": "out", "thread": 1}, "thread")):
        with pytest.raises(InputError, match=named):
            read_settings(wrong)
