"""A vLLM that extracts hidden states, and transformers beside it to compare with."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import torch
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoModelForCausalLM

from eyas.errors import NotFoundError
from eyas.run import spec as specs
from eyas.storage import hidden_states, hidden_states_check
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore
from eyas.vllm import launch

CONTEXT = 1024
TRITON_CPU = Path(__file__).parent / "triton_cpu"


class Reference:
    """The hidden states of transformers at every layer but the embeddings; the last one before the final norm."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._last: torch.Tensor | None = None
        self._model.model.norm.register_forward_pre_hook(self._keep)
        self.layer_ids = list(range(1, self._model.config.num_hidden_layers + 1))

    def states(self, ids: Sequence[int]) -> torch.Tensor:
        """[T, L, H] in float32."""
        with torch.inference_mode():
            every = self._model(torch.tensor([list(ids)]), output_hidden_states=True, use_cache=False).hidden_states
        return torch.stack([states[0] for states in every[1:-1]] + [self._last[0]], dim=1)

    def difference(self, data: bytes, ids: Sequence[int]) -> float:
        """Checks an object, and returns the largest relative difference of a state, over all tokens and layers."""
        stored = hidden_states.parse(data, "it")
        hidden_states_check.check(stored, ids, self.layer_ids, "it")
        values = torch.frombuffer(bytearray(stored.values), dtype=getattr(torch, stored.dtype)).view(stored.shape)
        expected = self.states(ids)
        return float(((values - expected).norm(dim=-1) / expected.norm(dim=-1)).max())

    def _keep(self, _: object, given: tuple[torch.Tensor, ...]) -> None:
        self._last = given[0]


def command(
    folder: Path, host: launch.Host, layer_ids: Sequence[int], storage_uri: str, *extra: str, v2: bool
) -> launch.Command:
    """As eyas starts it, but small, and giving up on storage after a second."""
    transfer = {
        "kv_connector": launch.CONNECTOR_CLASS,
        "kv_role": "kv_producer",
        "kv_connector_module_path": launch.CONNECTOR_MODULE,
        "kv_connector_extra_config": {"storage_uri": storage_uri, "upload_seconds": 1, "bytes_in_flight": 1_000_000},
    }
    arguments = ["--skip-tokenizer-init", "--shutdown-timeout", "30", *extra]
    arguments += ["--kv-transfer-config", json.dumps(transfer)]
    spec = specs.build(
        {
            "name": "tests",
            "model": {"uri": str(folder), "servedName": "m"},
            "hiddenStates": {"layerIds": [1, 2, 3, 4]},
            "vllm": {"dtype": "float32", "maxModelLen": CONTEXT, "extraArgs": arguments},
        }
    )
    spec.hidden_states.layer_ids[:] = layer_ids
    made = launch.extracting(spec, host, storage_uri)
    more = {"VLLM_USE_V2_MODEL_RUNNER": str(int(v2)), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if v2:
        more |= {"TRITON_INTERPRET": "1", "PYTHONPATH": str(TRITON_CPU)}
    return replace(made, environment={**made.environment, **more})


@dataclass(frozen=True)
class Extracting:
    """Asks a running server, and reads what it wrote."""

    url: str
    store: ObjectStore
    reference: Reference

    def key(self, ids: Sequence[int], run: str = "demo") -> str:
        """Key of the object of a sequence."""
        return RunLayout(run).hidden_states(hidden_states.key(ids))

    async def ask(self, ids: Sequence[int], **params: object) -> int:
        """Sends a request as the generator does, and returns the status of the answer."""
        body = {"model": "m", "prompt": list(ids), "max_tokens": 1, "temperature": 0}
        wanted = {"eyas_key": self.key(ids), "eyas_rows": len(ids)} | params
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session,
            session.post(f"{self.url}/v1/completions", json=body | {"kv_transfer_params": wanted}) as answer,
        ):
            await answer.read()
            return answer.status

    async def object(self, ids: Sequence[int], seconds: float = 20, run: str = "demo") -> bytes:
        """The object of a sequence, once it is there."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await self.store.get(self.key(ids, run))
                except NotFoundError:
                    await asyncio.sleep(0.02)

    async def there(self, ids: Sequence[int]) -> bool:
        """Whether a sequence has an object."""
        try:
            await self.store.head(self.key(ids))
        except NotFoundError:
            return False
        return True

    async def metrics(self) -> dict[str, float]:
        """Sums by name; outcomes of hidden states by their own."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.labels.get("outcome", sample.name)
                sums[name] = sums.get(name, 0) + sample.value
        return sums

    async def settled(self, name: str, value: float, seconds: float = 20) -> dict[str, float]:
        """The metrics once `name` is at least `value`. An engine that is idle tells nothing."""
        async with asyncio.timeout(seconds):
            while True:
                metrics = await self.metrics()
                if metrics[name] >= value:
                    return metrics
                await self.ask([7, 8, 9], eyas_key=self.key([7, 8, 9], "settling"))
                await asyncio.sleep(0.1)
