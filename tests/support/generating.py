"""A dispatcher and generators as processes, and a simulator that answers them."""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from eyas.simulator.server import Server, serve
from eyas.simulator.settings import SimulatorSettings
from eyas.tokenizer.v1 import tokenizer_pb2
from support.dispatching import EOS, MODEL, Stack
from support.services import Tokenizer as Rendering


class Tokenizer(Rendering):
    """The simulated model's tokenizer, as the dispatcher asks for it too."""

    async def Describe(self, request: tokenizer_pb2.DescribeRequest, context: Any) -> tokenizer_pb2.DescribeResponse:
        return tokenizer_pb2.DescribeResponse(
            model=MODEL, vocab_size=32000, eos_token_ids=[EOS], context=8192, hash="h", num_layers=4, hidden_size=64
        )


class Generating(Stack):
    """`Stack` with a simulator for a model server, and generators by name."""

    def __init__(self, folder: Path, **simulator: Any) -> None:
        super().__init__(folder)
        settings = SimulatorSettings(listen="127.0.0.1:0", model="m", **simulator)
        self.server = Server(settings)
        self.model = self.server.model
        self.tokenizer = Tokenizer(self.model)
        self.generators: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> "Generating":
        self.simulators = AsyncExitStack()
        simulated = await self.simulators.enter_async_context(serve(self.server.settings, self.server))
        await super().__aenter__()
        self.url = simulated
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.processes += self.generators
        await super().__aexit__(*error)
        await self.simulators.aclose()

    async def start_generator(self, **settings: Any) -> None:
        environment = {
            **os.environ,
            "EYAS_DISPATCHER": self.address,
            "EYAS_TOKENIZER": f"unix:{self.folder}/tokenizer",
            "EYAS_METRICS_LISTEN": "127.0.0.1:0",
            **{f"EYAS_{key.upper()}": str(value) for key, value in settings.items()},
        }
        with (self.folder / "generator.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "eyas.generator", env=environment, stdout=log, stderr=log
            )
        self.generators.append(process)

    async def kill_generator(self, number: signal.Signals = signal.SIGKILL) -> int:
        process = self.generators.pop(0)
        process.send_signal(number)
        return await process.wait()

    def check_answers(self, expected: int, max_tokens: int) -> None:
        """Each row once, and each the simulator's own unbroken answer."""
        rows = self.rows()
        assert len(rows) == len({(row["position"], row["turn"]) for row in rows}) == expected
        for row in rows:
            prompt = self.model.render([{"role": "user", "content": f"{row['position']}.0"}])
            assert row["prompt_ids"] == prompt
            assert row["ids"] == self.model.answer(prompt, max_tokens)
            assert row["finish_reason"] == ("stop" if row["ids"][-1] == EOS else "length")
            assert row["content"] == self.model.text(row["ids"])

    def useful_share(self) -> float:
        """Tokens in rows, of those that the server made."""
        return sum(len(row["ids"]) for row in self.rows()) / self.server.engine.generation_tokens
