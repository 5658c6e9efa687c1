"""Shows a run while it goes: one live block on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from eyas.cli import progress as texts
from eyas.cli.console import say
from eyas.run.v1 import run_pb2 as pb

_LINE_SECONDS = 10.0


class Screen:
    """`with Screen(console) as screen: screen.show(progress)`."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._next = clock()
        self._last: tuple[int, int, str] | None = None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: pb.Progress) -> None:
        """Shows a moment of the run. A line is printed every ten seconds, and when stage, state or reason change."""
        if self._live is not None:
            self._live.update(texts.block(progress), refresh=True)
            return
        now, key = self._clock(), (progress.stage, progress.state, progress.reason)
        if now >= self._next or key != self._last:
            self.say(texts.line(progress))
            self._next, self._last = now + _LINE_SECONDS, key

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        say(self._console, text)
