"""Where the command line writes: text is text, whatever brackets a path or an error holds."""

from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """A console that interprets nothing."""
    return Console(stderr=stderr, markup=False, highlight=False)


def say(where: Console, text: str) -> None:
    """A line, which only the terminal wraps, so that it can be copied and searched."""
    where.print(text, soft_wrap=True)
