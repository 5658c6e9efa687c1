"""Charts as inline SVG: bars, rows and lines. Colours come from the page's style, so that one chart serves both themes.

A series has a role, which is its CSS class: `kept`, `trained`, `step-0`. Every mark carries its values as a tooltip.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 40
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_ROW_HEIGHT, _ROW_LEFT = 26, 190
_MOST_LABELS = 10
_WIDEST = 56.0

DASH = "\u2013"
"""Between the ends of a range."""

Format = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """Values of one kind: one for each category of `bars` and `rows`, one for each x of `lines`. None leaves a gap."""

    name: str
    role: str
    values: Sequence[float | None]


def number(value: float) -> str:
    """A number in few characters: 1,234 or 12.3 or 0.045; 12.3k and 4.5M from ten thousand on."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scaled = value / {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{scaled:.1f}".removesuffix(".0") + unit
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """A share of 1 as percent."""
    return f"{100 * value:.1f}".removesuffix(".0") + "%"


def bars(
    categories: Sequence[str], series: Sequence[Series], x_title: str, *, stacked: bool = False, form: Format = number
) -> str:
    """Vertical bars, beside each other or stacked; stacked ones lie from the first series up.

    A category is named below its bars by what stands before its dash: of `200-399` the `200`.
    """
    totals = [sum(_known(one.values[at]) for one in series) for at in range(len(categories))]
    highest = max(totals if stacked else [_known(value) for one in series for value in one.values], default=0)
    scale = _Scale(0, highest)
    slot = _PLOT_WIDTH / max(1, len(categories))
    gap = min(slot * 0.25, 12.0)
    width = min(_WIDEST, slot - gap if stacked else (slot - gap) / max(1, len(series)))
    gap = slot - width * (1 if stacked else len(series))
    marks: list[str] = []
    for at, category in enumerate(categories):
        x, base = _LEFT + at * slot + gap / 2, 0.0
        for place, one in enumerate(series):
            value = _known(one.values[at])
            if not value:
                continue
            low, high = scale.y(base), scale.y(base + value)
            left = x if stacked else x + place * width
            tip = f"{category}: {form(value)} {one.name}"
            marks.append(
                f'<rect class="mark {one.role}" x="{left:.1f}" y="{high:.1f}" width="{max(1.0, width - 1):.1f}" '
                f'height="{max(0.5, low - high):.1f}"><title>{escape(tip)}</title></rect>'
            )
            base += value if stacked else 0.0
    every = math.ceil(len(categories) / _MOST_LABELS)
    names = [category.partition(DASH)[0] for category in categories]
    labels = [(_LEFT + (at + 0.5) * slot, text) for at, text in enumerate(names) if at % every == 0]
    return _frame("bars", [*scale.grid(form), *marks, *_x_labels(labels, x_title)])


def rows(categories: Sequence[str], series: Sequence[Series], form: Format = number) -> str:
    """Horizontal stacked bars with their total at the end: for names that are long."""
    totals = [sum(_known(one.values[at]) for one in series) for at in range(len(categories))]
    highest = max(totals, default=0) or 1
    room = WIDTH - _ROW_LEFT - 60
    parts: list[str] = []
    for at, category in enumerate(categories):
        y, x = at * _ROW_HEIGHT + 4, float(_ROW_LEFT)
        parts.append(f'<text class="name" x="{_ROW_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(category)}</text>')
        for one in series:
            value = _known(one.values[at])
            if not value:
                continue
            width = room * value / highest
            parts.append(
                f'<rect class="mark {one.role}" x="{x:.1f}" y="{y}" width="{max(1.0, width - 1):.1f}" height="17">'
                f"<title>{escape(f'{category}: {form(value)} {one.name}')}</title></rect>"
            )
            x += width
        parts.append(f'<text class="value" x="{x + 6:.1f}" y="{y + 13}">{form(totals[at])}</text>')
    return _frame("rows", parts, height=len(categories) * _ROW_HEIGHT + 8)


def lines(
    x: Sequence[float],
    series: Sequence[Series],
    x_title: str,
    *,
    form: Format = number,
) -> str:
    """Lines over a common x. A series with gaps is drawn as dots, for measurements that are rare."""
    known = [value for one in series for value in one.values if value is not None]
    scale = _Scale(0, max(known, default=0))
    left, right = min(x, default=0), max(x, default=0)

    def at(value: float) -> float:
        return _LEFT + _PLOT_WIDTH * ((value - left) / (right - left) if right > left else 0.5)

    parts = list(scale.grid(form))
    for one in series:
        points = [(at(a), scale.y(b)) for a, b in zip(x, one.values, strict=True) if b is not None]
        if len(points) == len(x) > 1:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            parts.append(f'<polyline class="line {one.role}" points="{path}"/>')
        else:
            parts += [f'<circle class="mark {one.role}" cx="{a:.1f}" cy="{b:.1f}" r="3.5"/>' for a, b in points]
    parts += _bands(x, series, at, x_title, form)
    ticks = [tick for tick in _nice(left, right, 6) if left <= tick <= right] or [left]
    return _frame("lines", [*parts, *_x_labels([(at(tick), number(tick)) for tick in ticks], x_title)])


def legend(series: Sequence[Series]) -> str:
    """Names and colours, as HTML; nothing for a single series."""
    if len(series) < 2:
        return ""
    items = "".join(f'<li><span class="key {one.role}"></span>{escape(one.name)}</li>' for one in series)
    return f'<ul class="legend">{items}</ul>'


class _Scale:
    """The y axis: linear, with round ticks."""

    def __init__(self, low: float, high: float) -> None:
        self._ticks = _nice(low, high if high > low else low + 1, 4)
        self._low, self._high = self._ticks[0], self._ticks[-1]

    def y(self, value: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - (value - self._low) / (self._high - self._low))

    def grid(self, form: Format) -> Iterator[str]:
        for tick in self._ticks:
            y, kind = self.y(tick), "base" if tick == self._ticks[0] else "grid"
            yield f'<line class="{kind}" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{form(tick)}</text>'


def _nice(low: float, high: float, count: int) -> list[float]:
    """About `count` round steps from at most `low` to at least `high`."""
    span = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(span))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= span * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(at * step, 12) for at in range(first, max(last, first + 1) + 1)]


def _bands(
    x: Sequence[float],
    series: Sequence[Series],
    at: Callable[[float], float],
    x_title: str,
    form: Format,
) -> Iterator[str]:
    """Invisible bands, one for each x, that show all its values as a tooltip."""
    for place, value in enumerate(x):
        start = at((x[place - 1] + value) / 2) if place else at(value)
        end = at((x[place + 1] + value) / 2) if place + 1 < len(x) else at(value)
        known = [(one.name, one.values[place]) for one in series]
        said = ", ".join(f"{form(found)} {name}" for name, found in known if found is not None)
        yield (
            f'<rect class="band" x="{start:.1f}" y="{_TOP}" width="{max(1.0, end - start):.1f}" '
            f'height="{_PLOT_HEIGHT}"><title>{escape(f"{number(value)} {x_title}: {said}")}</title></rect>'
        )


def _x_labels(labels: Sequence[tuple[float, str]], title: str) -> Iterator[str]:
    for x, text in labels:
        yield f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{escape(text)}</text>'
    middle = _LEFT + _PLOT_WIDTH / 2
    yield f'<text class="axis" x="{middle:.1f}" y="{HEIGHT - 5}" text-anchor="middle">{escape(title)}</text>'


def _frame(kind: str, parts: Sequence[str], height: int = HEIGHT) -> str:
    return f'<svg class="chart {kind}" viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _known(value: float | None) -> float:
    return value or 0.0
