"""How many events a second come through: from an optimised probe to a client that reads JSON; and that none is unaccounted for."""
import contextlib
import dataclasses
import os
import signal
import subprocess

from daemon import ARGUMENTS, Probe
from processes import Failure, cpu_ns, started, target
from rows import NOP

GOAL = 2_000_000  # events a second
LOWEST, STEP = 250_000, 1.15
TRIES = 3  # of a rate; a busy machine misses some at any
SECONDS = 1.0  # of each try
FLOOD = 100_000_000  # calls at full speed


@dataclasses.dataclass
class Flow:
    calls: int
    hits: int
    delivered: int
    missed: int
    rate: float  # calls a second
    daemon_ns: float  # of CPU time, for each event delivered
    reader_ns: float


@contextlib.contextmanager
def _reader(bench, probe):
    argv = [bench.program("bench-reader"), bench.daemon.path, probe.id]
    with started(argv, signal.SIGKILL, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        if bench.other_cpu is not None:
            os.sched_setaffinity(reader.pid, {bench.other_cpu})
        if reader.stdout.readline() != "ready\n":
            raise Failure("bench-reader got no subscription")
        yield reader


def _flow(bench, calls, how):
    with target(bench.program("bench-target"), NOP, 1, bench.cpu) as measured, bench.daemon.client() as client:
        probe = Probe(client, measured.pid, f"p:bench/flow {measured.address:#x} {ARGUMENTS}", {"optimize": True})
        with _reader(bench, probe) as reader:
            before = cpu_ns(bench.daemon.pid), cpu_ns(reader.pid)
            sample = measured.go(calls, how=how)
            reader.stdin.write("\n")
            reader.stdin.flush()
            used = cpu_ns(bench.daemon.pid) - before[0], cpu_ns(reader.pid) - before[1]
            counted, told, delivered, missed = map(int, reader.stdout.readline().split())
        hits = probe.account()[0]
        client.call("target.detach", pid=measured.pid)
        measured.finish()
    if not (hits == calls == delivered + missed and counted == delivered and told == missed):
        raise Failure(f"{calls} calls, {hits} hits, {delivered} delivered and {missed} missed; the reader has counted "
                      f"{counted} and been told of {told} missed")
    events = max(delivered, 1)
    return Flow(calls, hits, delivered, missed, 1e9 / sample.ns, used[0] / events, used[1] / events)


def _without_loss(bench, rate, seconds):
    """The best of a few tries."""
    flows = []
    for _ in range(TRIES):
        flows.append(_flow(bench, int(rate * seconds), f"pace {{}} {1e9 / rate:.0f}"))
        if flows[-1].missed == 0:
            return flows[-1]
    return min(flows, key=lambda flow: flow.missed / flow.calls)


def measure(bench, divisor):
    """{"rates": [Flow, ...], "flood": Flow}; the last rate is the first at which events were missed in every try."""
    rates, rate = [], LOWEST
    while not rates or rates[-1].missed == 0:
        rates.append(_without_loss(bench, rate, SECONDS / divisor))
        if rates[-1].rate < 0.7 * rate:
            break  # the target itself can't
        rate *= STEP
    flood = _flow(bench, FLOOD // divisor, "go {}")
    return {"rates": [dataclasses.asdict(flow) for flow in rates], "flood": dataclasses.asdict(flood)}
