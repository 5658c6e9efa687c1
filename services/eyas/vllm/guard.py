"""Runs a command so that all of it ends with its parent: `python -m eyas.vllm.guard PARENT_PID GRACE COMMAND…`.

A server such as vLLM is a tree of processes, and the kernel's death signal reaches one process only. The guard stays
beside the tree: when its parent dies, when it is told to end, or when the command ends by itself, it ends the whole
process group and passes the exit status on. GRACE is the time between SIGTERM and SIGKILL, in seconds. Standard
library only, so that it is up in milliseconds.
"""

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_END = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main() -> int:
    """Runs the command; returns its exit status, 128 + signal when a signal ended it."""
    parent, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    # Waited for, not handled: nothing can interrupt the guard between two of its own steps.
    signal.pthread_sigmask(signal.SIG_BLOCK, _END | {signal.SIGCHLD})
    _die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM
    # One thread and nothing open: what makes preexec_fn dangerous elsewhere is absent here.
    child = subprocess.Popen(command, process_group=0, preexec_fn=_prepare)  # noqa: PLW1509
    while child.poll() is None:
        if signal.sigwait(_END | {signal.SIGCHLD}) != signal.SIGCHLD:
            _end(child, grace)
    _signal_group(child, signal.SIGKILL)
    status = child.returncode
    return status if status >= 0 else 128 - status


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
