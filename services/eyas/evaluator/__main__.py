"""`python -m eyas.evaluator`: evaluates a run, and exits with 0 when it is done."""

from eyas.evaluator.evaluate import run
from eyas.evaluator.settings import Settings
from eyas.telemetry import logs, process


def main() -> None:
    """Reads the settings and evaluates."""
    settings = process.settings(Settings)
    logs.configure("evaluator", settings.log_json)
    process.run(run(settings))


if __name__ == "__main__":
    main()
