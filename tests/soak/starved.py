#!/usr/bin/env python3
"""starved.py BUILD RUNS LOOPS: programs that are traced on a full machine: none is lost, and none stands still for long.

Beside LOOPS busy loops, half of them in sessions of their own, a program is traced by `probectl trace` with a private
daemon, RUNS times: on every tier in turn, ended by ^C, or by a kill of the daemon. (Stepped probes, which probectl makes
only where nothing else works, are asked for by the protocol of a daemon that is ended by SIGTERM.) The program calls the
C library all the time and tells the longest time that it stood still; what it waits for a processor itself isn't
counted. The same is measured without a trace. Prints a table. Exit status 1 when a program was lost, or one stood still
for more than 100 ms.
"""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
from daemon import daemon  # noqa: E402
from processes import PATIENCE, busy, children_of, started  # noqa: E402
from working import Working  # noqa: E402

GOAL_MS = 100
TIERS = {
    "breakpoint": ["-e", "p libc:strchr", "-e", "p libc:rand_r", "--no-optimize"],
    "many breakpoints": ["-e", "p libc:str*", "--no-optimize"],
    "jump": ["-e", "p libc:*"],
    "return": ["-e", "r libc:str*"],
    "stepped": ["libc:strchr", "libc:rand_r", "libc:strlen"],
}
ENDS = ("^C", "kill")
TRACED = 0.3  # seconds


def end_trace(trace, how):
    """Seconds until it has ended. "kill": its daemon, whose tracer puts everything back."""
    began = time.monotonic()
    if how == "^C":
        trace.send_signal(signal.SIGINT)
    else:
        for pid in children_of(trace.pid):
            os.kill(pid, signal.SIGKILL)
    trace.wait(PATIENCE)
    return time.monotonic() - began


def tracer_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("TracerPid:"))


def traced(build, directory, target, tier, how):
    """By probectl: (seconds until armed, seconds until ended)"""
    environment = dict(os.environ, PROBED_SOCKET=os.path.join(directory, "none.sock"))
    argv = [os.path.join(build, "client", "probectl"), "trace", "-p", str(target.pid), *TIERS[tier], "-o", "/dev/null"]
    began = time.monotonic()
    trace = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment)
    said = []
    try:
        for line in trace.stderr:
            said.append(line)
            if line.startswith("armed"):
                break
        else:
            raise SystemExit("not armed: " + "".join(said))
        armed = time.monotonic() - began
        time.sleep(TRACED)
        return armed, end_trace(trace, how)
    finally:
        if trace.poll() is None:
            trace.terminate()
            trace.wait()


def stepped(build, target, how):
    """By the protocol: the same."""
    with daemon(os.path.join(build, "daemon", "probed")) as own, own.client() as client:
        probes = [{"definition": f"p {place}", "optimize": False} for place in TIERS["stepped"]]
        began = time.monotonic()
        added = client.call("probe.add", pid=target.pid, probes=probes, maxRate=0, **{"x-step": True})["probes"]
        armed = time.monotonic() - began
        time.sleep(TRACED)
        tiers = {probe["id"]: probe["tier"] for probe in client.call("probe.list", pid=target.pid)["probes"]}
        if any(tiers[probe["id"]] != "stepped" for probe in added):
            raise SystemExit(f"not stepped: {tiers}")
        began = time.monotonic()
        own.process.send_signal(signal.SIGTERM if how == "^C" else signal.SIGKILL)
        own.process.wait(PATIENCE)
        return armed, time.monotonic() - began


def run(build, directory, target, tier, how):
    """(seconds until armed, seconds until ended, longest gap in ms)"""
    target.mark()
    seconds = stepped(build, target, how) if tier == "stepped" else traced(build, directory, target, tier, how)
    deadline = time.monotonic() + PATIENCE
    while tracer_of(target.pid) != 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    return *seconds, target.mark()[1]


@contextlib.contextmanager
def program(build):
    argv = [os.path.join(build, "tests", "bench", "bench-working")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with started(argv, signal.SIGKILL, start_new_session=True, **pipes) as process:
        yield Working(process)


def alone(target, times):
    gaps = []
    for _ in range(times):
        target.mark()
        time.sleep(2 * TRACED)
        gaps.append(target.mark()[1])
    return gaps


def table(results):
    """Prints it; the longest gap in ms."""
    print(f"{'':26}{'runs':>6}{'armed':>8}{'most':>8}{'ended':>8}{'most':>8}   s{'gap':>10}{'most':>10}   ms")
    worst = 0.0
    for (tier, how), rows in sorted(results.items()):
        middle = [sorted(column)[len(rows) // 2] for column in zip(*rows)]
        most = [max(column) for column in zip(*rows)]
        worst = max(worst, most[2])
        seconds = "".join(f"{middle[i]:8.2f}{most[i]:8.2f}" for i in (0, 1))
        print(f"{tier + ', ' + how:26}{len(rows):6}{seconds}    {middle[2]:10.2f}{most[2]:10.2f}")
    return worst


def main():
    build, runs, loops = os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lost, results, number = [], {}, 0
    with busy(loops), tempfile.TemporaryDirectory(prefix="probed-starved-") as directory, contextlib.ExitStack() as stack:
        target = stack.enter_context(program(build))
        print(f"alone: stood still for {max(alone(target, 10)):.2f} ms at most; load {os.getloadavg()[0]:.1f}", flush=True)
        try:
            for number in range(1, runs + 1):
                tier, how = list(TIERS)[number % len(TIERS)], ENDS[number // len(TIERS) % len(ENDS)]
                try:
                    results.setdefault((tier, how), []).append(run(build, directory, target, tier, how))
                except (BrokenPipeError, ValueError):
                    lost.append(f"{number}: {tier}, {how}: {target.process.wait()}")
                    target = stack.enter_context(program(build))
        finally:  # also when it is ended early
            worst = table(results)
            print(f"lost: {len(lost)} of {number}", *lost, sep="\n  ", flush=True)
    return 1 if lost or worst > GOAL_MS else 0


if __name__ == "__main__":
    sys.exit(main())
