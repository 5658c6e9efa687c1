"""Charts as SVG: marks where they belong, and well-formed whatever comes."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.report import svg
from eyas.report.svg import Series

values = st.lists(st.none() | st.just(0.0) | st.floats(1e-6, 1e12), max_size=12)


def marks(chart: str, tag: str = "rect") -> list[dict[str, str]]:
    return [found.attrib for found in ET.fromstring(chart).iter(tag) if "mark" in found.get("class", "")]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (0.0451, "0.0451"), (12.34, "12.3"), (1234.5, "1,234"), (12_300, "12.3k"), (4.5e6, "4.5M")],
)
def test_numbers_are_short(value: float, text: str):
    assert svg.number(value) == text


def test_percent():
    assert [svg.percent(value) for value in (0, 0.5, 0.1234, 1)] == ["0%", "50%", "12.3%", "100%"]


def test_stacked_bars_stand_on_each_other():
    one, two = marks(svg.bars(["a"], [Series("x", "kept", [30]), Series("y", "lost", [10])], "t", stacked=True))
    assert float(one["y"]) == pytest.approx(float(two["y"]) + float(two["height"]), abs=0.2)
    assert float(one["height"]) == pytest.approx(3 * float(two["height"]), abs=0.2)


def test_grouped_bars_stand_side_by_side_on_the_base():
    one, two = marks(svg.bars(["a"], [Series("x", "kept", [30]), Series("y", "lost", [10])], "t"))
    assert float(one["x"]) + float(one["width"]) <= float(two["x"])
    assert float(one["y"]) + float(one["height"]) == pytest.approx(float(two["y"]) + float(two["height"]), abs=0.2)


def test_a_line_rises_to_the_right():
    chart = ET.fromstring(svg.lines([0, 1], [Series("x", "kept", [1, 2])], "t"))
    (line,) = list(chart.iter("polyline"))
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in line.attrib["points"].split())
    assert x0 < x1
    assert y0 > y1


def test_rare_values_are_dots():
    assert len(marks(svg.lines([0, 1, 2], [Series("x", "kept", [1, None, 2])], "t"), "circle")) == 2


def test_tooltips_are_escaped():
    assert "<b>" not in svg.rows(["<b>"], [Series("&", "kept", [1])])


def test_a_legend_is_for_more_than_one():
    assert svg.legend([Series("x", "kept", [])]) == ""
    assert svg.legend([Series("x", "kept", []), Series("y", "lost", [])]).count("<li>") == 2


@given(values, values)
def test_any_values_make_a_chart(one: list, other: list):
    size = min(len(one), len(other))
    series = [Series("a", "kept", one[:size]), Series("b", "lost", other[:size])]
    names = [f"c{at}" for at in range(size)]
    for chart in (
        svg.bars(names, series, "t"),
        svg.bars(names, series, "t", stacked=True),
        svg.rows(names, series),
        svg.lines(list(map(float, range(size))), series, "t"),
    ):
        ET.fromstring(chart)
        assert "nan" not in chart
        assert "inf" not in chart
        drawn = [mark for mark in marks(chart) if "y" in mark]
        assert all(float(mark["y"]) >= 0 for mark in drawn)
