import json
import logging

import pytest
import structlog

from eyas.telemetry import logs


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def test_json_events_name_the_service_whoever_logs(capsys):
    logs.configure("dispatcher", as_json=True)
    structlog.get_logger().info("started", port=9)
    logging.getLogger("library").warning("old %s", "style")
    ours, theirs = map(json.loads, capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["port"], ours["service"], ours["level"]) == ("started", 9, "dispatcher", "info")
    assert (theirs["event"], theirs["service"], theirs["logger"]) == ("old style", "dispatcher", "library")
    assert ours["timestamp"].endswith("Z")


def test_an_exception_is_part_of_its_event(capsys):
    logs.configure("dispatcher", as_json=True)
    try:
        int("wrong")
    except ValueError:
        structlog.get_logger().exception("failed")
    (event,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert event["exception"][0]["exc_type"] == "ValueError"


def test_plain_events_are_lines_without_colours(capsys):
    logs.configure("generator", as_json=False)
    structlog.get_logger().info("started", port=9)
    line = capsys.readouterr().err
    assert "started" in line
    assert "port=9" in line
    assert "\x1b" not in line
