import json

from eyas.cli import samples
from eyas.datasets import load
from eyas.run.v1 import run_pb2 as pb


def test_samples_go_in_messages_below_the_limit(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = [{"prompt": f"{number} " + "x" * 600} for number in range(2500)] + [{"prompt": ""}] * 3
    path.write_text("\n".join(map(json.dumps, rows)))
    with load([str(path)], holdout=5) as imported:
        parts = list(samples.parts(pb.RunSpec(name="demo"), pb.STAGE_TRAIN, imported))
        remarks = "\n".join(samples.remarks(imported))
    assert parts[0].header.spec.name == "demo"
    assert parts[0].header.until == pb.STAGE_TRAIN
    assert max(part.ByteSize() for part in parts) < 2 << 20
    sent = [sample for part in parts for sample in part.samples.samples]
    assert len({sample.sample_id for sample in sent}) == len(sent) == 2500
    assert sum(sample.split == "holdout" for sample in sent) == 5
    assert json.loads(sent[0].messages)[0]["role"] == "user"
    assert [row.line for part in parts for row in part.rejected.rows] == [2501, 2502, 2503]
    assert "2,495 conversations to train on, 5 held out" in remarks
    assert "3 rows cannot be used: empty 3" in remarks


def test_one_long_sample_is_a_message_of_its_own(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": letter * (1 << 20)}) for letter in "abc"))
    with load([str(path)]) as imported:
        parts = list(samples.parts(pb.RunSpec(), pb.STAGE_GENERATE, imported))
    assert [len(part.samples.samples) for part in parts[1:]] == [1, 1, 1]
