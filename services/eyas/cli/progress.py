"""How far a run is, for people: as a block for a terminal, and as one line for a log. Pure."""

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from eyas.run.v1 import run_pb2 as pb

_PHASES = ("connect", "first_token", "stall", "total")
_JOBS = (pb.STAGE_TRAIN, pb.STAGE_EVALUATE)
_VERBS = {
    pb.STAGE_GENERATE: "generating",
    pb.STAGE_EXTRACT: "extracting",
    pb.STAGE_TRAIN: "training",
    pb.STAGE_EVALUATE: "evaluating",
    pb.STAGE_DONE: "done",
}
_STATES = {
    pb.STATE_PAUSED: "paused",
    pb.STATE_CANCELLED: "cancelled",
    pb.STATE_FAILED: "failed",
    pb.STATE_DONE: "done",
}


def stage(progress: pb.Progress) -> str:
    """What the run does now, in a word or two."""
    verb = _VERBS.get(progress.stage, "starting")
    state = _STATES.get(progress.state, "")
    return verb if state in ("", verb) else f"{verb}, {state}"


def done(progress: pb.Progress) -> tuple[int, int]:
    """Done and asked for: rows, or steps of a job."""
    if progress.stage in _JOBS:
        return progress.job.done, progress.job.total
    items = progress.items
    return items.ok + items.truncated, items.total


def facts(progress: pb.Progress) -> list[tuple[str, str]]:
    """What is known about the stage, as name and value."""
    if progress.stage in _JOBS:
        values = [(name, _number(value)) for name, value in sorted(progress.job.values.items())]
        return [*values, *_time(progress)]
    items, tokens = progress.items, progress.tokens
    known = [
        ("ok", f"{items.ok:,}"),
        ("truncated", f"{items.truncated:,}"),
        ("failed", f"{items.failed:,}"),
        ("in flight", f"{items.in_flight:,}"),
    ]
    if items.uncommitted:
        known.append(("to be written", f"{items.uncommitted:,}"))
    if tokens.generated:
        useful = tokens.useful / tokens.generated
        known += [
            ("tokens/s", f"{tokens.per_second:,.0f}"),
            ("tokens", f"{tokens.generated:,}"),
            ("useful", f"{useful:.1%}"),
            ("mean length", f"{tokens.mean_length:,.0f}"),
        ]
    timeouts = ", ".join(f"{name} {progress.timeouts[name]:,}" for name in _PHASES if progress.timeouts.get(name))
    return [*known, ("timeouts", timeouts or "none"), *_time(progress)]


def line(progress: pb.Progress) -> str:
    """One line for a log."""
    count, total = done(progress)
    parts = [f"{stage(progress)} {count:,}/{total:,}"] if total else [stage(progress)]
    parts += [f"{name} {value}" for name, value in facts(progress)]
    if progress.stage in _JOBS and progress.job.message:
        parts.append(progress.job.message)
    if progress.reason:
        parts.append(progress.reason)
    return f"{progress.run}: " + " · ".join(parts)


def block(progress: pb.Progress) -> RenderableType:
    """The screen of a terminal."""
    count, total = done(progress)
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(progress.run, style="bold"),
        Text(stage(progress), style=_style(progress)),
        ProgressBar(total=max(total, 1), completed=count, width=32),
        f"{count:,} / {total:,}" if total else "",
    )
    body = Table.grid(padding=(0, 3))
    known = facts(progress)
    for start in range(0, len(known), 4):
        body.add_row(*(Text.assemble((f"{name} ", "dim"), value) for name, value in known[start : start + 4]))
    parts: list[RenderableType] = [head, body]
    parts += [
        Text(f"{server.url}  {server.in_flight} of {server.limit} requests{_trouble(server)}", style="dim")
        for server in progress.endpoints
    ]
    parts += [Text(text) for text in (progress.job.message, progress.reason) if text]
    return Group(*parts)


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _time(progress: pb.Progress) -> list[tuple[str, str]]:
    times = [("running", duration(progress.elapsed_seconds))] if progress.elapsed_seconds else []
    if progress.remaining_seconds:
        times.append(("left", duration(progress.remaining_seconds)))
    return times


def _style(progress: pb.Progress) -> str:
    return {pb.STATE_PAUSED: "yellow", pb.STATE_FAILED: "red", pb.STATE_DONE: "green"}.get(progress.state, "cyan")


def _trouble(server: pb.EndpointProgress) -> str:
    return "" if server.healthy else f", {server.reason or 'no answer'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e12 else f"{value:.4g}"
