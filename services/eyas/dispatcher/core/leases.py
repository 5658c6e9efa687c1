"""Which generators are there. Silence ends their leases, and nothing else does."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Generator:
    """A generator, from its first word until its leases end."""

    name: str
    capacity: int
    heard: float
    ready: bool = False
    """It is connected, and has said all that it holds."""
    draining: bool = False
    """It is about to end."""
    load: int = 0
    """Items it works on, of all runs."""
    said: set[tuple[str, int]] = field(default_factory=set)
    """Run and item of what it said that it holds, in this connection."""

    @property
    def room(self) -> int:
        """Items that may be added."""
        return self.capacity - self.load if self.ready and not self.draining else 0


class Leases:
    """All generators. Times are in seconds, of one clock that only goes forward."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.generators: dict[str, Generator] = {}

    def hello(self, name: str, capacity: int, now: float) -> Generator:
        """A generator connects, again perhaps: it keeps what is leased to it, and has to say what it holds."""
        generator = self.generators.get(name)
        if generator is None:
            generator = self.generators[name] = Generator(name, capacity, now)
        generator.capacity, generator.heard, generator.ready, generator.draining = capacity, now, False, False
        generator.said.clear()
        return generator

    def heard(self, name: str, now: float) -> bool:
        """A sign of life. False when the generator's leases have ended: it has to connect again."""
        generator = self.generators.get(name)
        if generator is None:
            return False
        generator.heard = now
        return True

    def expire(self, now: float) -> Iterator[str]:
        """Forgets generators that were silent for too long, and names them. Their items are the caller's to return."""
        for name, generator in list(self.generators.items()):
            if now - generator.heard > self.seconds:
                del self.generators[name]
                yield name

    def roomiest(self) -> Generator | None:
        """The generator with the smallest share of its capacity in use, of those with room."""
        free = [generator for generator in self.generators.values() if generator.room > 0]
        return min(free, key=lambda generator: generator.load / generator.capacity, default=None)
