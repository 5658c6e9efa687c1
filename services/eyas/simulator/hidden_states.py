"""Objects where a vLLM with our connector would put hidden states: of the right size, and not of the right values."""

from eyas.simulator.settings import SimulatorSettings
from eyas.storage import hidden_states
from eyas.storage.objects import open_store

_DTYPE = "float16"


async def store(settings: SimulatorSettings, key: str, ids: list[int]) -> None:
    """Creates the object of a sequence."""
    tokens, layers, hidden = len(ids), settings.hidden_states_layers, settings.hidden_size
    header = hidden_states.header(tokens, layers, hidden, _DTYPE)
    size = hidden_states.object_size(tokens, layers, hidden, _DTYPE)
    body = b"".join(token.to_bytes(8, "little") for token in ids)
    await open_store(settings.storage_uri).put(key, header + body.ljust(size - len(header), b"\x3c"))
