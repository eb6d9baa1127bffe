"""How long the threads of a process stand still while it is attached, armed, disarmed and let go."""
import subprocess
import time

from processes import PATIENCE, Failure, started

THREADS = (1, 100, 1000)
GOAL_MS = 50  # at 1,000 threads
OPERATIONS = ("nothing", "attach", "arm", "disarm", "detach")
SETTLE = 0.2  # seconds: longer than any of the target's naps, so that every thread has had its say


class Paused:
    """bench-pause, and what it says."""

    def __init__(self, process):
        self.process = process
        words = process.stdout.readline().split()
        if len(words) != 3:
            raise Failure("bench-pause did not start")
        self.pid, self.address = int(words[1]), int(words[2], 16)
        time.sleep(SETTLE)  # its threads are all at it

    def mark(self):
        """Milliseconds since the last one."""
        self.process.stdin.write("mark\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()) / 1e6


def _operation(client, target, name, state):
    if name == "attach":
        client.call("target.attach", pid=target.pid)
    elif name == "arm":
        definition = f"p:bench/pause {target.address:#x}"
        state["ids"] = [client.call("probe.add", pid=target.pid, probes=[{"definition": definition}])["probes"][0]["id"]]
    elif name == "disarm":
        client.call("probe.remove", ids=state["ids"])
    elif name == "detach":
        client.call("target.detach", pid=target.pid)


def _round(client, target, pauses, waits):
    state = {}
    for name in OPERATIONS:
        target.mark()
        began = time.monotonic()
        _operation(client, target, name, state)
        waits.setdefault(name, []).append((time.monotonic() - began) * 1e3)
        time.sleep(SETTLE)
        pauses.setdefault(name, []).append(target.mark())


def measure(bench, rounds):
    """{threads: {operation: {"pause": [ms], "wait": [ms]}}}; wait: of the client for its answer."""
    results = {}
    for threads in THREADS:
        argv = [bench.program("bench-pause"), threads]
        pauses, waits = {}, {}
        with started(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            target = Paused(process)
            with bench.daemon.client() as client:
                for _ in range(rounds):
                    _round(client, target, pauses, waits)
            process.stdin.close()
            if process.wait(PATIENCE) != 0:
                raise Failure("bench-pause was harmed")
        results[threads] = {name: {"pause": pauses[name], "wait": waits[name]} for name in OPERATIONS}
    return results
