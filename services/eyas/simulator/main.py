"""Serves until SIGTERM or SIGINT."""

import structlog

from eyas.simulator.server import serve
from eyas.simulator.settings import SimulatorSettings
from eyas.telemetry import logs, process


async def run(settings: SimulatorSettings) -> None:
    """Runs a simulator until it is told to stop."""
    stop = process.stop_event()
    async with serve(settings) as address:
        structlog.get_logger().info("simulator serves", address=address, model=settings.model)
        await stop.wait()


def main() -> None:
    """Entry point of the process."""
    logs.configure("simulator", as_json=False)
    process.run(run(process.settings(SimulatorSettings)))
