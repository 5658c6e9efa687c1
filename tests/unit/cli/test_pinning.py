import pytest

from eyas.cli import pinning
from eyas.errors import InputError
from eyas.run import spec as specs
from eyas.tokenizer.v1 import tokenizer_pb2
from eyas.vllm.client import ServerInfo

DESCRIBED = tokenizer_pb2.DescribeResponse(
    model="/m",
    vocab_size=100,
    eos_token_ids=[2],
    context=4096,
    hash="h",
    num_layers=30,
    hidden_size=64,
    dtype="float16",
)


def spec(**more):
    return specs.build({"name": "demo", "model": {"uri": "/m"}, "generation": {"maxTokens": 1000}} | more)


def server(*models, root="/m", context=2048):
    return ServerInfo(models, root, context, "0.32")


def test_a_launched_vllm_is_pinned_from_the_models_folder():
    asked = spec()
    pinning.complete(asked, DESCRIBED, None, False)
    pinned = asked.model.fingerprint
    assert (pinned.root, pinned.context, pinned.dtype, pinned.hidden_size) == ("/m", 4096, "float16", 64)
    assert list(asked.hidden_states.layer_ids) == [2, 15, 27, 30]
    specs.check(asked)


def test_a_server_is_pinned_from_what_it_says():
    asked = spec(endpoints=[{"url": "http://a"}])
    pinning.complete(asked, DESCRIBED, server("m"), True)
    assert asked.model.served_name == "m"
    assert (asked.model.fingerprint.context, asked.model.fingerprint.reasons) == (2048, True)


@pytest.mark.parametrize(("given", "models", "root"), [("", ["other"], "/x"), ("name", ["other", "m"], "/m")])
def test_a_server_of_another_model_is_refused_with_its_names(given, models, root):
    model = {"uri": "/m", "servedName": given} if given else {"uri": "/m"}
    asked = spec(endpoints=[{"url": "http://a"}], model=model)
    with pytest.raises(InputError, match=r"http://a serves other.*--served-model-name other"):
        pinning.complete(asked, DESCRIBED, server(*models, root=root), False)


def test_layers_of_another_model_are_refused():
    with pytest.raises(InputError, match="has 30 layers"):
        pinning.complete(spec(hiddenStates={"layerIds": [1, 5, 9, 28]}), DESCRIBED, None, False)


def test_answers_that_cannot_fit_are_refused_with_the_remedy():
    with pytest.raises(InputError, match=r"context of 512.*--max-tokens"):
        pinning.complete(spec(endpoints=[{"url": "http://a"}]), DESCRIBED, server("/m", context=512), False)


@pytest.mark.parametrize(
    ("dtype", "of_config", "served"),
    [("auto", "bfloat16", "bfloat16"), ("auto", "float32", ""), ("float32", "bfloat16", "float32")],
)
def test_the_data_type_as_served(dtype, of_config, served):
    asked, described = spec(vllm={"dtype": dtype}), tokenizer_pb2.DescribeResponse(dtype=of_config)
    pinning.complete(asked, described, None, False)
    assert asked.model.fingerprint.dtype == served


def test_a_prompt_that_ends_in_reasoning():
    described = tokenizer_pb2.DescribeResponse(reasoning_start_id=0, reasoning_end_id=1)
    assert pinning.opened([5, 0], described)
    assert not pinning.opened([0, 5, 1], described)
    assert not pinning.opened([5], described)
    assert not pinning.opened([0], DESCRIBED)
