"""The report as one HTML page that needs nothing beside itself."""

from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

import yaml

from eyas.report import figures, svg
from eyas.report.data import RunData
from eyas.report.svg import number, percent
from eyas.run import spec as specs

_COLUMNS = (
    "Drafter",
    "Acceptance length",
    "Repetition share",
    "Tokens a step",
    "Acceptance rate",
    "Tokens/s",
    "Speed-up",
    "Greedy agreement",
)
_MEASURED = {
    "none": "the model alone",
    "ngram": "n-gram lookup",
    "untrained": "untrained",
    "trained": "trained",
    "endpoint": "endpoint as it is",
}


def render(data: RunData) -> str:
    """Builds the page."""
    style = resources.files("eyas.report").joinpath("page.css").read_text(encoding="utf-8")
    sections = (_head(data), _drafters(data), _answers(data), _trouble(data), _training(data), _spec(data))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The browser itself refuses whatever would need a network.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        # An icon of its own keeps browsers from asking the server for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(data.spec.name)} \u00b7 eyas</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _head(data: RunData) -> str:
    found = figures.counts(data)
    done = found.ok + found.truncated
    trained = data.drafters.get("trained")
    tiles = [
        ("Acceptance length", f"{trained['acceptance_length']:.2f}" if trained else "\u2013"),
        ("Answers asked for", number(found.asked)),
        ("Ended by the model", number(found.ok)),
        ("Cut at the limit", number(found.truncated)),
        ("Given up", number(found.failed)),
        ("Tokens", number(found.tokens)),
        ("Mean length", f"{found.tokens / done:.0f}" if done else "\u2013"),
    ]
    if found.open:
        tiles.insert(5, ("Not answered yet", number(found.open)))
    items = "".join(f"<li><span>{escape(name)}</span><b>{escape(value)}</b></li>" for name, value in tiles)
    holdout = sum(sample.split == "holdout" for sample in data.samples)
    return (
        f"<header><h1>{escape(data.spec.name)}</h1><p>A drafter for <code>{escape(data.spec.model.uri)}</code> from "
        f"{len(data.samples) - holdout:,} samples; {holdout:,} more were held out to measure it.</p>"
        f'<ul class="tiles">{items}</ul></header>\n'
    )


def _drafters(data: RunData) -> str:
    title = "Drafters"
    if not data.drafters:
        return _absent(title, "Nothing was measured yet: the evaluation comes after the training.")
    first = max(data.drafters, key=lambda name: data.drafters[name]["tokens_per_step"])
    base = data.drafters.get("none")
    body = "".join(
        f'<tr class="{"first" if name == first else ""}">'
        + "".join(f"<td>{escape(cell)}</td>" for cell in _row(name, measured, base))
        + "</tr>"
        for name, measured in data.drafters.items()
    )
    table = (
        f'<div class="table"><table id="drafters"><thead><tr>{"".join(f"<th>{name}</th>" for name in _COLUMNS)}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )
    evaluation = data.spec.evaluation
    note = (
        f"Measured on held-out prompts with {evaluation.num_speculative_tokens} drafted tokens a step. Acceptance "
        "length is 1 + accepted / drafts, from vLLM's counters. Text that repeats itself is easy to draft, so the "
        "share of repeated tokens stands beside it. Steps that had nothing to draft count in tokens a step only. "
        "Greedy answers may differ where two tokens are nearly tied."
    )
    speeds = figures.speeds(data.drafters)
    charts = [
        _bars(
            "Acceptance by position",
            "Share of the drafts whose token was accepted.",
            figures.by_position(data.drafters),
            "position in the draft",
            form=percent,
        ),
        _figure("Speed", "Tokens a second, over all requests at once.", "", svg.rows(speeds.categories, speeds.series)),
    ]
    return _section(title, note, table + _differences(data) + _grid(charts))


def _row(name: str, measured: dict[str, Any], base: dict[str, Any] | None) -> list[str]:
    drafted = measured["drafts"] > 0
    agreement = measured.get("greedy_agreement")
    unexplained = sum(not found["near_tie"] for found in measured.get("differences") or ())
    agreed = "\u2013" if agreement is None else percent(agreement)
    if unexplained:
        agreed += f" ({unexplained} unexplained)"
    speed = measured["tokens_per_second"]
    return [
        _MEASURED.get(name, name),
        f"{measured['acceptance_length']:.2f}" if drafted else "1",
        percent(measured["repetition_share"]),
        f"{measured['tokens_per_step']:.2f}",
        percent(measured["acceptance_rate"]) if drafted else "\u2013",
        f"{speed:.1f}",
        f"{speed / base['tokens_per_second']:.2f}\u00d7" if base and base["tokens_per_second"] else "\u2013",
        agreed,
    ]


def _differences(data: RunData) -> str:
    """Answers that a drafter changed though the model was not undecided."""
    found = [
        f"<tr><td>{escape(name)}</td><td>{part['prompt']}</td><td>{part['position']}</td><td>{part['expected']}</td>"
        f"<td>{part['found']}</td><td>{'unknown' if part['gap'] is None else format(part['gap'], '.3f')}</td></tr>"
        for name, measured in data.drafters.items()
        for part in measured.get("differences") or ()
        if not part["near_tie"]
    ]
    if not found:
        return ""
    heads = ("Drafter", "Prompt", "Token", "Model's id", "Id found", "Difference (nats)")
    return (
        "<p>These greedy answers left the model's own where it was not undecided:</p>"
        f'<div class="table"><table id="differences"><thead><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr>'
        f"</thead><tbody>{''.join(found)}</tbody></table></div>"
    )


def _answers(data: RunData) -> str:
    title = "Answers"
    if not data.answers:
        return _absent(title, "Nothing was answered yet.")
    tokens, busy = figures.throughput(data.answers)
    kept = figures.longest_kept(data)
    note = f"An answer may have {data.spec.generation.max_tokens:,} tokens."
    if kept is not None:
        note += f" Of the longest tenth of the prompts, {percent(kept)} were not given up."
    return _section(
        title,
        note,
        _grid(
            [
                _bars(
                    "Prompts asked for and kept",
                    "Samples by the length of their messages.",
                    figures.prompt_lengths(data),
                    "characters",
                    stacked=True,
                ),
                _bars(
                    "Answers kept",
                    "Answers by length and by how they ended.",
                    figures.answer_lengths(data),
                    "tokens",
                    stacked=True,
                ),
                _lines("Throughput", "Tokens a second, over all servers.", tokens, "minutes since the start"),
                _lines("Concurrency", "Answers being generated at once.", busy, "minutes since the start"),
            ]
        ),
    )


def _trouble(data: RunData) -> str:
    title = "Timeouts and interruptions"
    if not data.answers and not data.failures:
        return _absent(title, "Nothing was tried yet.")
    found = figures.causes(data)
    counted = sum(value or 0 for one in found.series for value in one.values)
    more = sum(answer.attempts > 1 for answer in data.answers)
    note = f"{more:,} answers needed more than one attempt; {len(data.failures):,} items were given up."
    text = "Attempts by what ended them." if counted else "Attempts by what ended them: none was interrupted."
    return _section(title, note, _grid([_rows("By cause", text, found)]))


def _training(data: RunData) -> str:
    title = "Training"
    if not data.steps:
        return _absent(title, "Nothing was trained yet.")
    last = data.steps[-1]
    charts = [
        _lines(
            "Loss", "Weighted over the drafted tokens, each step of the optimiser.", figures.losses(data.steps), "step"
        ),
        _lines(
            "Accuracy",
            "Share of positions where the draft is the model's choice.",
            figures.accuracies(data.steps),
            "step",
            form=percent,
        ),
    ]
    estimates, deciles = figures.estimates(data.steps), figures.deciles(data.summary)
    if estimates:
        text = "What the accuracies promise, before vLLM measures it."
        charts.append(_lines("Estimated acceptance length", text, estimates, "step"))
    if deciles:
        charts.append(
            _bars(
                "Supervised and generated tokens",
                "Tenths of the sequences by length, shortest first. What falls short was cut by the sequence limit.",
                deciles,
                "longest sequence, tokens",
            )
        )
    seen, supervised = (number(sum(step[name] for step in data.steps)) for name in ("tokens", "supervised"))
    note = f"{last['step']:,} steps, {seen} tokens, {supervised} of them supervised."
    absent = "" if deciles else _line("Tokens by length follow at the end of the training.")
    return _section(title, note, _grid(charts) + absent + _skipped(data.summary))


def _skipped(summary: dict[str, Any]) -> str:
    skipped = {reason: count for reason, count in (summary.get("skipped") or {}).items() if count}
    if not skipped:
        return ""
    said = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in skipped.items())
    return _line(f"Samples skipped: {said}.")


def _spec(data: RunData) -> str:
    text = yaml.safe_dump(specs.to_mapping(data.spec), sort_keys=False, allow_unicode=True, width=100)
    return _section("Settings", "", f"<details><summary>run.yaml</summary><pre>{escape(text)}</pre></details>")


def _bars(
    title: str, text: str, found: figures.Bars, x_title: str, *, stacked: bool = False, form: svg.Format = number
) -> str:
    chart = svg.bars(found.categories, found.series, x_title, stacked=stacked, form=form)
    return _figure(title, text, svg.legend(found.series), chart)


def _rows(title: str, text: str, found: figures.Bars) -> str:
    return _figure(title, text, svg.legend(found.series), svg.rows(found.categories, found.series))


def _lines(title: str, text: str, found: figures.Lines, x_title: str, form: svg.Format = number) -> str:
    chart = svg.lines(found.x, found.series, x_title, form=form)
    return _figure(title, text, svg.legend(found.series), chart)


def _figure(title: str, text: str, legend: str, chart: str) -> str:
    return f"<figure><figcaption><h3>{escape(title)}</h3><p>{escape(text)}</p></figcaption>{legend}{chart}</figure>"


def _grid(charts: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>'


def _section(title: str, note: str, body: str) -> str:
    said = f"<p>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{said}{body}</section>\n"


def _absent(title: str, why: str) -> str:
    return _section(title, "", _line(why))


def _line(text: str) -> str:
    return f'<p class="absent">{escape(text)}</p>'
