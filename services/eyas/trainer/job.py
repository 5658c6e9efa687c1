"""One training of a run, from its data to the exported drafter. Whatever ends it, the same call goes on."""

import asyncio
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import structlog
import torch

from eyas.errors import DataError, InputError, NotFoundError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2 as pb
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore
from eyas.storage.runs import read_spec
from eyas.trainer import checkpoint, fit, formats, initial, vocabulary
from eyas.trainer.config import for_model, text_config
from eyas.trainer.data import Corpus, Reader, by_decile, read_corpus
from eyas.trainer.engine import Engine
from eyas.trainer.export import Exporter
from eyas.trainer.loop import Interrupted, Loop, Split
from eyas.trainer.model import Drafter
from eyas.trainer.order import epoch_rows, windows
from eyas.trainer.parallel import Processes, join
from eyas.trainer.pretrained import Pretrained
from eyas.trainer.steplog import StepLog
from eyas.trainer.target import Target, Weights, read_target
from eyas.trainer.vocabulary import Vocabulary

Tell = Callable[..., None]
_log = structlog.get_logger()


@dataclass(frozen=True)
class _Job:
    """What stays the same over a training."""

    store: ObjectStore
    spec: pb.RunSpec
    layout: RunLayout
    settings_hash: str
    processes: Processes
    weights: Weights
    target: Target
    layer_ids: tuple[int, ...]
    corpus: Corpus
    data_key: str

    @property
    def exporter(self) -> Exporter:
        drafts = self.spec.evaluation.num_speculative_tokens
        model = self.spec.model.uri
        return Exporter(self.store, model, self.weights.config, self.target.embedding_VH, drafts)


def train(store: ObjectStore, run: str, stop: Callable[[], bool], tell: Tell) -> bool:
    """Trains and exports the drafter of a run; False when `stop` ended it before, with a checkpoint written.

    `tell(done, total, values, message)` hears of each step.
    """
    spec = asyncio.run(read_spec(store, run))
    settings_hash = specs.training_hash(spec)
    if _manifest(store, RunLayout(run)).get("settings_hash") == settings_hash:
        _log.info("the drafter is there already", settings_hash=settings_hash)
        return True
    processes = join()
    try:
        return _train(_prepare(store, spec, processes), stop, tell)
    finally:
        processes.close()


def _prepare(store: ObjectStore, spec: pb.RunSpec, processes: Processes) -> _Job:
    if spec.training.batch_size % processes.world:
        raise InputError(
            f"training.batchSize is {spec.training.batch_size} for {processes.world} processes: "
            "it must be a multiple of their number"
        )
    weights = Weights(spec.model.uri)
    corpus = read_corpus(store, spec)
    key = vocabulary.data_key((e.key for e in corpus.train), spec.model.fingerprint.tokenizer_hash)
    number = float(int(key[:12], 16))
    if processes.leader_says([number]) != [number]:
        raise DataError("the processes of this training see different data: wait until the extraction has ended")
    return _Job(
        store=store,
        spec=spec,
        layout=RunLayout(spec.name),
        settings_hash=specs.training_hash(spec),
        processes=processes,
        weights=weights,
        target=read_target(weights, processes.device),
        layer_ids=_layer_ids(spec, weights.config),
        corpus=corpus,
        data_key=key,
    )


def _layer_ids(spec: pb.RunSpec, config: Mapping[str, Any]) -> tuple[int, ...]:
    if spec.hidden_states.layer_ids:
        return tuple(spec.hidden_states.layer_ids)
    layers = int(text_config(config)["num_hidden_layers"])
    return (2, layers // 2, layers - 3, layers)


def _train(job: _Job, stop: Callable[[], bool], tell: Tell) -> bool:
    prefix = job.layout.training(job.settings_hash)
    checkpoints = checkpoint.Checkpoints(job.store, prefix)
    found = checkpoints.load(job.data_key)
    words = _vocabulary(job) if found is None else vocabulary.from_d2t(found[1]["d2t"], len(job.target.head_VH))
    drafter = _drafter(job, words).to(job.processes.device)
    training, held_out = (_split(job, examples) for examples in (job.corpus.train, job.corpus.held_out))
    if found is None:
        if job.processes.leads:
            job.exporter.native(f"{prefix}/untrained", drafter, words)
        _fit(job, drafter, training)
    engine = Engine(drafter, job.target, words, job.spec.training, job.processes)
    place = checkpoint.Place(data_key=job.data_key)
    if found is not None:
        place, tensors = found
        checkpoint.restore(tensors, drafter, engine.optimizer)
        _log.info("goes on at its checkpoint", step=place.step, seconds=round(place.seconds, 1))
    loop = Loop(
        engine,
        job.spec,
        training,
        held_out,
        checkpoints=checkpoints,
        steps=StepLog(job.store, job.layout.training_steps(job.settings_hash)) if job.processes.leads else None,
        d2t=words.d2t,
        stop=stop,
        report=tell,
    )
    result = loop.run(place)
    if isinstance(result, Interrupted):
        _log.warning("stops before its end; the same command goes on", step=result.step)
        return False
    broken = job.processes.merge(training.reader.broken)
    if job.processes.leads:
        _finish(job, drafter, words, _summary(job, words, loop, result, broken))
    return True


def _vocabulary(job: _Job) -> Vocabulary:
    counts = vocabulary.count((e.ids[e.mask] for e in job.corpus.train), len(job.target.head_VH))
    return vocabulary.choose(counts, job.spec.training.draft_vocab_size)


def _drafter(job: _Job, words: Vocabulary) -> Drafter:
    training = job.spec.training
    config = for_model(job.weights.config, training, job.layer_ids[:-1], len(words.ids_W))
    pretrained = Pretrained(training.from_pretrained) if training.from_pretrained else None
    drafter = Drafter(pretrained.config(config) if pretrained else config)
    initial.initialise(drafter, job.target, words, training.seed)
    if pretrained is not None:
        rows = pretrained.load(drafter, words)
        _log.info("starts from a checkpoint", folder=training.from_pretrained, head_rows=rows, of=len(words.ids_W))
    return drafter


def _fit(job: _Job, drafter: Drafter, training: Split) -> None:
    rows = epoch_rows(training.sizes, job.spec.training.total_seq_len, job.spec.training.seed, epoch=0)
    documents = (document for row in training.read(rows) for document in row)
    found = fit.fit(documents, job.processes.device)
    fit.apply(found, drafter, fresh=not job.spec.training.from_pretrained)
    job.processes.share(drafter.state_dict().values())


def _split(job: _Job, examples: list[Any]) -> Split:
    cut = windows([len(example.ids) for example in examples], job.spec.training.total_seq_len)
    return Split(cut, Reader(job.store, job.layout, job.layer_ids, examples, job.spec.thresholds.given_up_pause))


def _summary(
    job: _Job, words: Vocabulary, loop: Loop, place: checkpoint.Place, broken: Mapping[str, str]
) -> dict[str, Any]:
    examples = [e for e in job.corpus.train if e.sample_id not in broken]
    supervised: dict[str, int] = {}
    for example in examples:
        supervised[example.sample_id] = supervised.get(example.sample_id, 0) + int(example.mask[1:].sum())
    skipped = {**job.corpus.skipped, "hidden_states_broken": list(broken)}
    counts = vocabulary.count((e.ids[e.mask] for e in examples), words.size)
    return {
        "settings_hash": job.settings_hash,
        "data_key": job.data_key,
        "tokenizer_hash": job.spec.model.fingerprint.tokenizer_hash,
        "steps": place.step,
        "epochs": place.epoch,
        "tokens": place.tokens,
        "seconds": place.seconds,
        "tokens_per_second": place.tokens / max(place.seconds, 1e-9),
        "sequences": len(examples),
        "loss": loop.last.loss if loop.last else None,
        "accuracy_by_step": loop.last.accuracy_by_step if loop.last else [],
        "held_out": loop.held_out,
        "vocabulary": {
            "size": len(words.ids_W),
            "seen": int((counts > 0).sum()),
            "coverage": float(counts[words.ids_W.numpy()].sum() / max(1, counts.sum())),
        },
        "length_deciles": by_decile(job.corpus.generated, supervised),
        "skipped": {reason: len(samples) for reason, samples in skipped.items()},
        "skipped_samples": {reason: samples[:100] for reason, samples in skipped.items()},
        "broken": dict(list(broken.items())[:100]),
        "versions": {"eyas": metadata.version("eyas"), "torch": torch.__version__, "python": platform.python_version()},
    }


def _finish(job: _Job, drafter: Drafter, words: Vocabulary, summary: dict[str, Any]) -> None:
    """Summary, both formats, and the manifest as the last."""
    key = job.layout.training_summary(job.settings_hash)
    job.store.put_blocking(key, json.dumps(summary, indent=2).encode() + b"\n")
    asyncio.run(job.store.delete(job.layout.drafter_manifest))
    exporter, folder = job.exporter, job.layout.drafter
    files = {
        formats.NATIVE: exporter.native(f"{folder}/{formats.NATIVE}", drafter, words),
        formats.SPECULATORS: exporter.speculators(f"{folder}/{formats.SPECULATORS}", drafter, words),
    }
    manifest = {
        "settings_hash": job.settings_hash,
        "data_key": job.data_key,
        "tokenizer_hash": job.spec.model.fingerprint.tokenizer_hash,
        "layer_ids": list(job.layer_ids[:-1]),
        "steps": summary["steps"],
        "sha256": files,
        "versions": summary["versions"],
    }
    job.store.put_blocking(job.layout.drafter_manifest, json.dumps(manifest, indent=2).encode() + b"\n")
    _log.info("the drafter is written", key=job.layout.drafter, steps=summary["steps"])


def _manifest(store: ObjectStore, layout: RunLayout) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(store.get_blocking(layout.drafter_manifest))
    except NotFoundError:
        return {}
    return manifest
