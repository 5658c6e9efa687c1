"""`python -m eyas.tokenizer`: the tokenizer as a process."""

from eyas.telemetry import logs, process
from eyas.tokenizer.server import serve
from eyas.tokenizer.settings import Settings


def main() -> None:
    """Reads the settings, loads the tokenizer and serves until a signal."""
    settings = process.settings(Settings)
    logs.configure("tokenizer", settings.log_json)
    process.run(serve(settings))


if __name__ == "__main__":
    main()
