"""An imported dataset as the messages that create a run, and as a few lines for people."""

from collections.abc import Iterator

from eyas.datasets import Imported
from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.run.v1 import run_pb2

_ROWS = 1_000
_BYTES = 1 << 20


def parts(spec: run_pb2.RunSpec, until: run_pb2.Stage.ValueType, imported: Imported) -> Iterator[pb.CreateRunRequest]:
    """Header, samples and rejected rows, in messages below gRPC's limit."""
    yield pb.CreateRunRequest(header=pb.CreateRunHeader(spec=spec, until=until))
    batch, size = pb.SampleBatch(), 0
    for sample in imported:
        if batch.samples and (len(batch.samples) == _ROWS or size + len(sample.messages) > _BYTES):
            yield pb.CreateRunRequest(samples=batch)
            batch, size = pb.SampleBatch(), 0
        batch.samples.add(
            sample_id=sample.sample_id,
            messages=sample.messages,
            source=sample.source,
            split=sample.split,
            turns=sample.turns,
        )
        size += len(sample.messages)
    yield pb.CreateRunRequest(samples=batch)
    for start in range(0, len(imported.rejected), _ROWS):
        rows = [pb.Rejected(**row) for row in imported.rejected[start : start + _ROWS]]
        yield pb.CreateRunRequest(rejected=pb.RejectedBatch(rows=rows))


def remarks(imported: Imported) -> list[str]:
    """What was found in the dataset."""
    kept = f"{imported.train:,} conversations to train on"
    if imported.holdout:
        kept += f", {imported.holdout:,} held out"
    lines = [f"dataset: {kept}, {imported.generations:,} answers to generate"]
    if imported.duplicates:
        lines.append(f"dataset: {imported.duplicates:,} repeated rows dropped")
    if imported.rejected:
        reasons = ", ".join(f"{name} {count:,}" for name, count in imported.rejected_counts.items())
        lines.append(f"dataset: {len(imported.rejected):,} rows cannot be used: {reasons}")
    return lines
