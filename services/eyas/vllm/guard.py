"""Runs a command so that all of it ends with its parent: `python -m eyas.vllm.guard PARENT_PID GRACE_SECONDS COMMAND…`.

A server such as vLLM is a tree of processes, and the kernel's death signal reaches one process only. The guard stays
beside the tree: when its parent dies, when it is told to end, or when the command ends by itself, it ends all of the
session, which it must lead, and passes the exit status on. Standard library only, so that it is up in milliseconds.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_END = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main() -> int:
    """Runs the command; returns its exit status, 128 + signal when a signal ended it."""
    parent, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    # Waited for, not handled: nothing can interrupt the guard between two of its own steps.
    signal.pthread_sigmask(signal.SIG_BLOCK, _END | {signal.SIGCHLD})
    _die_with_parent(signal.SIGTERM)
    if os.getsid(0) != os.getpid():
        sys.exit("eyas.vllm.guard must lead a session of its own: start it with setsid")
    if os.getppid() != parent:
        return 128 + signal.SIGTERM
    # One thread and nothing open: what makes preexec_fn dangerous elsewhere is absent here.
    child = subprocess.Popen(command, process_group=0, preexec_fn=_prepare)  # noqa: PLW1509
    while child.poll() is None:
        if signal.sigwait(_END | {signal.SIGCHLD}) != signal.SIGCHLD:
            _end(child, grace)
    end_session(os.getsid(0))
    status = child.returncode
    return status if status >= 0 else 128 - status


def end_session(session: int) -> None:
    """Kills what is left of a session, this process excepted."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if os.getsid(int(entry.name)) == session:
                    os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                continue


def _prepare() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END | {signal.SIGCHLD})
    _die_with_parent(signal.SIGKILL)


def _die_with_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _end(child: subprocess.Popen[bytes], grace: float) -> None:
    _signal_group(child, signal.SIGTERM)
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        _signal_group(child, signal.SIGKILL)
        child.wait()


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main())
