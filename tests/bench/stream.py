"""How many events a second come through: from an optimised probe to a client that reads JSON; and that none is unaccounted for."""
import dataclasses

from daemon import ARGUMENTS, Probe
from processes import Failure, cpu_ns, target
from reader import Reader
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


def _flow(bench, calls, how):
    with target(bench.program("bench-target"), NOP, 1, bench.cpu) as measured, bench.daemon.client() as client:
        probe = Probe(client, measured.pid, f"p:bench/flow {measured.address:#x} {ARGUMENTS}", {"optimize": True})
        with Reader(bench, probe.id) as reader:
            before = sum(map(cpu_ns, bench.daemon.pids)), cpu_ns(reader.pid)
            sample = measured.go(calls, how=how)
            used = sum(map(cpu_ns, bench.daemon.pids)) - before[0], cpu_ns(reader.pid) - before[1]
            delivered, missed = reader.totals()
        hits = probe.account()[0]
        client.call("target.detach", pid=measured.pid)
        measured.finish()
    if not hits == calls == delivered + missed:
        raise Failure(f"{calls} calls, {hits} hits, {delivered} delivered and {missed} missed")
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
