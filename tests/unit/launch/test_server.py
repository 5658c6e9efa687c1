"""A server's life: up when the block is entered, gone with all its children when it is left."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from eyas.errors import EndpointError, InputError
from eyas.vllm.server import Command, VllmServer

SERVER = """
import http.server, os, subprocess, sys
if "--noisy" in sys.argv:
    print("(EngineCore pid=7) ERROR 11-30 [core.py:1] ValueError: the context does not fit")
    print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
    sys.exit(3)
child = subprocess.Popen(["sleep", "60"])
print("child", child.pid, "secret", os.environ.get("EYAS_TOKEN"), "space", os.environ.get("SPACE"), flush=True)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""

LAUNCHER = """
import asyncio, sys
from pathlib import Path
from eyas.vllm.server import Command, VllmServer
folder = Path(sys.argv[1])
async def main():
    async with VllmServer(Command((sys.executable, "-S", str(folder / "server.py"))), folder / "vllm.log", 20):
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def command(tmp_path: Path, *more: str, **environment: str) -> Command:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    return Command((sys.executable, "-S", str(script), *more), environment)


def logged(server: VllmServer) -> dict[str, str]:
    words = server.tail().split()
    return dict(zip(words[::2], words[1::2], strict=True))


def alive(pid: int) -> bool:
    """Whether a process runs: one that is dead and not yet collected by its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while alive(pid):  # noqa: ASYNC110 - another process's end raises no event here
            await asyncio.sleep(0.01)


async def test_it_answers_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EYAS_TOKEN", "secret")
    monkeypatch.setenv("SPACE", "7")
    async with VllmServer(command(tmp_path, SPACE="2"), tmp_path / "logs" / "vllm.log", 20) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.exit_code is None
        said = logged(server)
        assert alive(int(said["child"]))
    assert said["secret"] == "None"
    assert said["space"] == "7"
    assert server.exit_code == 128 + signal.SIGTERM
    await gone(int(said["child"]))


async def test_two_at_once_have_ports_of_their_own(tmp_path: Path):
    async with (
        VllmServer(command(tmp_path), tmp_path / "1.log", 20) as one,
        VllmServer(command(tmp_path), tmp_path / "2.log", 20) as two,
    ):
        assert one.url != two.url


async def test_the_end_of_the_server_is_the_end_of_its_tree(tmp_path: Path):
    async with VllmServer(command(tmp_path), tmp_path / "vllm.log", 20) as server:
        child = int(logged(server)["child"])
        os.kill(parent_of(child), signal.SIGKILL)
        assert await server.wait() == 128 + signal.SIGKILL
        await gone(child)


async def test_the_end_of_the_guard_is_the_end_of_the_tree(tmp_path: Path):
    async with VllmServer(command(tmp_path), tmp_path / "vllm.log", 20) as server:
        child = int(logged(server)["child"])
        os.kill(parent_of(parent_of(child)), signal.SIGKILL)
        assert await server.wait() == -signal.SIGKILL
    await gone(child)


async def test_the_death_of_the_launcher_is_the_end_of_the_tree(tmp_path: Path):
    launcher = tmp_path / "launcher.py"
    launcher.write_text(LAUNCHER)
    command(tmp_path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(launcher), str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    child = int((tmp_path / "vllm.log").read_text().split()[1])
    process.kill()
    await process.wait()
    await gone(child)


async def test_an_early_end_is_noticed_at_once_and_explained(tmp_path: Path):
    server = VllmServer(command(tmp_path, "--noisy"), tmp_path / "vllm.log", 60)
    with pytest.raises(EndpointError, match=r"ended with status 3: ValueError: the context does not fit \(log: "):
        await server.__aenter__()
    assert server.exit_code == 3


async def test_a_server_that_never_answers_is_ended(tmp_path: Path):
    server = VllmServer(Command(("sh", "-c", "sleep 60")), tmp_path / "vllm.log", 0.2)
    with pytest.raises(EndpointError, match=r"did not answer within 0 s.*vllm\.startSeconds"):
        await server.__aenter__()
    assert server.exit_code is not None


async def test_a_log_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="log of vLLM cannot be written"):
        await VllmServer(Command(("true",)), tmp_path / "file" / "vllm.log", 1).__aenter__()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
