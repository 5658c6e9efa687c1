"""The tokenizer as a process, over gRPC, with the demo's model."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from transformers import AutoTokenizer

from eyas.errors import InputError
from eyas.rpc.channels import open_channel
from eyas.rpc.errors import translated
from eyas.tokenizer.v1 import tokenizer_pb2 as pb
from eyas.tokenizer.v1 import tokenizer_pb2_grpc

MODEL = Path(__file__).parents[2] / "build/assets/model"
TOKEN = "secret"

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="the demo's model is not built")


@pytest.fixture(scope="module")
def reference():
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    environment = os.environ | {
        "EYAS_MODEL": str(MODEL),
        "EYAS_LISTEN": f"unix:{folder}/s.sock",
        "EYAS_METRICS_LISTEN": "127.0.0.1:0",
        "EYAS_TOKEN": TOKEN,
        "EYAS_LOG_JSON": "true",
    }
    with (folder / "log").open("w") as log:
        child = subprocess.Popen([sys.executable, "-m", "eyas.tokenizer"], env=environment, stderr=log)
    yield child, environment["EYAS_LISTEN"], folder / "log"
    child.kill()
    child.wait()


@pytest.fixture
async def stub(process):
    async with open_channel(process[1], TOKEN) as channel:
        yield tokenizer_pb2_grpc.TokenizerStub(channel)


async def test_it_becomes_healthy(process):
    async with open_channel(process[1]) as channel:
        request = health_pb2.HealthCheckRequest(service="eyas.tokenizer.v1.Tokenizer")
        reply = await health_pb2_grpc.HealthStub(channel).Check(request, wait_for_ready=True, timeout=60)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "What is the capital of France?"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe?\n\n\u2028 <|im_end|> 🙂"}],
        [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": " one \n"},
            {"role": "user", "content": "def f(x):\n\treturn x" * 500},
        ],
    ],
)
async def test_render_is_what_transformers_renders(stub, reference, messages):
    reply = await stub.Render(pb.RenderRequest(messages=json.dumps(messages)), wait_for_ready=True, timeout=60)
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(reply.ids) == expected


async def test_parse_gives_the_text_back(stub, reference):
    text = "Paris, «la ville lumière» 🙂\n\n"
    ids = [*reference.encode(text, add_special_tokens=False), reference.eos_token_id]
    reply = await stub.Parse(pb.ParseRequest(ids=ids, prompt_ids=[1, 2, 3]), wait_for_ready=True, timeout=60)
    assert (reply.content, reply.reasoning, reply.tool_calls) == (text, "", "")


async def test_describe_says_what_the_model_is(stub):
    reply = await stub.Describe(pb.DescribeRequest(), wait_for_ready=True, timeout=60)
    assert (reply.vocab_size, reply.context, list(reply.eos_token_ids)) == (49152, 8192, [2])
    assert (reply.num_layers, reply.hidden_size) == (30, 576)
    assert reply.dtype == json.loads((MODEL / "config.json").read_text())["dtype"]
    assert not reply.HasField("reasoning_start_id")
    assert len(reply.hash) == 64


async def test_a_rejected_conversation_is_the_callers_fault(stub):
    with pytest.raises(InputError, match="content"), translated("tokenizer"):
        await stub.Render(pb.RenderRequest(messages='[{"role": "user"}]'), wait_for_ready=True, timeout=60)


async def test_sigterm_ends_it_in_good_order(process, stub):
    await stub.Describe(pb.DescribeRequest(), wait_for_ready=True, timeout=60)
    child, _, log = process
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 0
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == ["serving"]


def test_a_wrong_model_is_one_sentence(tmp_path):
    environment = os.environ | {"EYAS_MODEL": str(tmp_path / "missing"), "EYAS_METRICS_LISTEN": "127.0.0.1:0"}
    command = [sys.executable, "-m", "eyas.tokenizer"]
    child = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)
    assert child.returncode == 1
    assert child.stderr.startswith("error: no model is at")
    assert child.stderr.count("\n") == 1
