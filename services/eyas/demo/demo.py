"""Runs the demo as a user would, by `eyas run`, then says what came out of it."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from eyas.demo import assets
from eyas.demo.result import SPECULATING, Result, read
from eyas.errors import EyasError
from eyas.storage.objects import open_store

RUN = "run"
TRAINED_ON, HELD_OUT = ("humaneval.jsonl", "sharegpt.json"), "mtbench.jsonl"
SETTINGS = Path(__file__).with_name("run.yaml")


def run(build: Path, vllm_python: Path, console: Console) -> Result:
    """Prepares `build/assets`, runs into `build/demo/run`, and writes `build/demo/result.json`.

    A run that was interrupted goes on where it was. Raises EyasError when it does not end well.
    """
    asset_folder, output = build / "assets", build / "demo"
    assets.prepare(asset_folder)
    output.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "eyas.cli", "run", "-f", str(SETTINGS), "--output", str(output / RUN)]
    command += ["--model", str(asset_folder / assets.MODEL), "--vllm-python", str(vllm_python)]
    for name in TRAINED_ON:
        command += ["--dataset", str(asset_folder / name)]
    command += ["--holdout", str(asset_folder / HELD_OUT)]
    status = _run(command)
    if status:
        raise EyasError(f"the demo's run ended with exit status {status}: the same command goes on where it was")
    result = asyncio.run(read(open_store(str(output)), RUN))
    (output / "result.json").write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    _show(result, output, console)
    return result


def _run(command: list[str]) -> int:
    """Runs a command in the foreground. Ctrl-C reaches it from the terminal, and it drains: this process waits."""
    process = subprocess.Popen(command)
    forward = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT,)}
    forward[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        return process.wait()
    finally:
        for number, handler in forward.items():
            signal.signal(number, handler)


def _show(result: Result, output: Path, console: Console) -> None:
    table = Table("drafter", "acceptance length", "repetition share", "equal to greedy answers", title="Drafters")
    for name in SPECULATING:
        length, repetition = result["acceptance_length"][name], result["repetition_share"][name]
        table.add_row(name, f"{length:.2f}", f"{repetition:.0%}", f"{result['greedy_agreement'][name]:.0%}")
    console.print(table)
    console.print(
        f"{result['rows']} answers from {result['samples']} questions: {result['ok']} ended, {result['truncated']} "
        f"reached the limit, {result['failed']} failed; {result['useful_token_share']:.1%} of the tokens were useful"
    )
    console.print(f"report: {output / RUN / 'report.html'}\nresult: {output / 'result.json'}")
