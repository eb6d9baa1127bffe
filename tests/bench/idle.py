"""What a traced process pays while no probe of it is hit: for a signal and for a fork."""
import signal
import statistics
import subprocess

from daemon import Probe
from processes import Failure, PATIENCE, started

OPERATIONS = {"signal": 20_000, "fork": 500}
STATES = ("unattached", "attached", "1 jump, not hit")


def _measure(process, divisor):
    times = {}
    for name, count in OPERATIONS.items():
        process.stdin.write(f"{name} {max(count // divisor, 10)}\n")
        process.stdin.flush()
        times[name] = float(process.stdout.readline())
    return times


def _round(bench, divisor):
    argv = ["taskset", "-c", bench.cpu, bench.program("bench-idle")]
    with started(argv, signal.SIGKILL, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        words = process.stdout.readline().split()
        if len(words) != 3:
            raise Failure("bench-idle did not start")
        pid, address = int(words[1]), words[2]
        times = {STATES[0]: _measure(process, divisor)}
        with bench.daemon.client() as client:
            client.call("target.attach", pid=pid)
            times[STATES[1]] = _measure(process, divisor)
            Probe(client, pid, f"p:bench/idle {address}", {"optimize": True})
            times[STATES[2]] = _measure(process, divisor)
            client.call("target.detach", pid=pid)
        process.stdin.close()
        if process.wait(PATIENCE) != 0:
            raise Failure("bench-idle was harmed")
    return times


def measure(bench, rounds, divisor):
    """{operation: {state: median ns}}"""
    results = [_round(bench, divisor) for _ in range(rounds)]
    return {name: {state: statistics.median(r[state][name] for r in results) for state in STATES} for name in OPERATIONS}
