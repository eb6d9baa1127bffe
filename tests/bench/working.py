"""What arming all functions of the C library costs a program that calls them all the time: the work that it gets done."""
import statistics
import subprocess
import time

from processes import PATIENCE, Failure, started

DEFINITION = "p:bench/working libc:*"
WINDOW = 0.5  # seconds
BEFORE = 0.05  # of these, before the first byte is written
GOAL_RATIO, GOAL_GAP_MS = 0.7, 10


class Working:
    """bench-working, and what it says."""

    def __init__(self, process):
        self.process = process
        words = process.stdout.readline().split()
        if len(words) != 2:
            raise Failure("bench-working did not start")
        self.pid = int(words[1])
        time.sleep(BEFORE)

    def mark(self):
        """Since the last one: rounds a second of the time that the thread had, and milliseconds that it stood still."""
        self.process.stdin.write("mark\n")
        self.process.stdin.flush()
        rounds, had, longest = (int(word) for word in self.process.stdout.readline().split())
        return rounds * 1e9 / max(had, 1), longest / 1e6


def _rest_of(began, window):
    time.sleep(max(0.0, began + window - time.monotonic()))


def _round(daemon, program):
    with started([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process, daemon.client() as client:
        target = Working(process)
        client.call("target.attach", pid=target.pid)
        target.mark()
        time.sleep(WINDOW)
        alone, gap_alone = target.mark()
        began = time.monotonic()
        time.sleep(BEFORE)
        asked = time.monotonic()
        probes = client.call("probe.add", pid=target.pid, probes=[{"definition": DEFINITION}], maxRate=0)["probes"]
        armed = client.arrived - asked
        _rest_of(began, WINDOW)
        work, gap = target.mark()
        time.sleep(WINDOW)
        traced, _ = target.mark()
        began = time.monotonic()
        client.call("probe.remove", ids=[probe["id"] for probe in probes])
        _rest_of(began, WINDOW)
        removing, gap_removing = target.mark()
        process.stdin.close()
        if process.wait(PATIENCE) != 0:
            raise Failure("bench-working was harmed")
    return {"arming": work / alone, "traced": traced / alone, "removing": removing / alone, "gap_ms": gap,
            "gap_removing_ms": gap_removing, "gap_alone_ms": gap_alone, "armed_s": armed, "probes": len(probes)}


def measure(bench, rounds):
    """{daemon: {what: {median, min, max}}}; arming, traced, removing: work as a ratio to the program's alone."""
    daemons = {"probed": bench.daemon} | ({"baseline": bench.baseline} if bench.baseline else {})
    runs = {name: [] for name in daemons}
    for _ in range(rounds):
        for name, daemon in daemons.items():
            runs[name].append(_round(daemon, bench.program("bench-working")))
    return {name: {what: {"median": statistics.median(r[what] for r in of), "min": min(r[what] for r in of),
                          "max": max(r[what] for r in of)} for what in of[0]} for name, of in runs.items()}
