"""How long a thread of a target stands still on a full machine: twelve busy loops, half of them in the tracer's session.

The scheduler's autogroups share the processors among sessions: who has six loops in its own is the worst off. What the
target waits for a processor itself isn't counted (bench-pause).
"""
import contextlib
import subprocess
import time

from pause import Paused
from processes import PATIENCE, Failure, started

LOOPS = 12
GOAL_MS = 100
SETTLE = 1.0  # seconds: probes become jumps meanwhile
# What is armed, and how: one tier each, and all functions of the C library, which the target is in all the time.
CASES = {
    "nothing": None,
    "libc:*": {"definition": "p:bench/busy libc:*"},
    "libc:*, returns": {"definition": "r:bench/busy libc:c*"},
    "breakpoints": {"definition": "p:bench/busy libc:clock_gettime", "optimize": False},
}
OPERATIONS = ("arming", "armed", "letting go")


@contextlib.contextmanager
def _busy_machine():
    loop = ["sh", "-c", "while :; do :; done"]
    with contextlib.ExitStack() as stack:
        for i in range(LOOPS):
            stack.enter_context(started(loop, start_new_session=i % 2 == 1))
        yield


def _operation(client, target, name, case, state):
    if case is None:
        return
    if name == "arming":
        probes = client.call("probe.add", pid=target.pid, probes=[case], maxRate=0)["probes"]
        state["ids"] = [probe["id"] for probe in probes]
    elif name == "letting go":
        client.call("probe.remove", ids=state["ids"])


def _round(client, target, case, pauses, waits):
    state = {}
    for name in OPERATIONS:
        target.mark()
        began = time.monotonic()
        _operation(client, target, name, case, state)
        waits.setdefault(name, []).append((time.monotonic() - began) * 1e3)
        time.sleep(SETTLE)
        pauses.setdefault(name, []).append(target.mark())


def _measure_case(bench, daemon, case, rounds):
    pauses, waits = {}, {}
    argv = [bench.program("bench-pause"), 1]
    with started(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        target = Paused(process)
        with daemon.client() as client:
            for _ in range(rounds):
                _round(client, target, case, pauses, waits)
        process.stdin.close()
        if process.wait(PATIENCE) != 0:
            raise Failure("bench-pause was harmed")
    return {name: {"pause": pauses[name], "wait": waits[name]} for name in OPERATIONS}


def measure(bench, rounds):
    """{daemon: {case: {operation: {"pause": [ms], "wait": [ms]}}}}; wait: of the client for its answer."""
    daemons = {"probed": bench.daemon} | ({"baseline": bench.baseline} if bench.baseline else {})
    with _busy_machine():
        return {name: {case: _measure_case(bench, daemon, what, rounds) for case, what in CASES.items()}
                for name, daemon in daemons.items()}
