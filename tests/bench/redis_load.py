"""redis-benchmark against a redis-server whose processCommand is probed."""
import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable

from daemon import Probe
from processes import Failure, Unavailable, started, wait_until
from reader import Reader

FUNCTION = "processCommand"
# processCommand(client *c): the client, and at byte 72 (redis 7.0 of Debian 12) the number of the command's words.
OURS = f"p:bench/command {FUNCTION} c=$arg1 argc=+72($arg1):s32"
KERNEL = "c=%di argc=+72(%di):s32"
CLIENTS = 4
# redis-benchmark's usual clients, and so many requests in flight of each: the server has work while the load's CPU reads events.
PIPELINED_CLIENTS, PIPELINE = 50, 16


@contextlib.contextmanager
def _server(bench, directory):
    path = os.path.join(directory, "redis.sock")
    argv = [shutil.which("redis-server"), "--port", 0, "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", directory]
    with started(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        wait_until(lambda: os.path.exists(path), "redis-server")
        # All of its threads; what it starts later inherits this from the main thread.
        for tid in os.listdir(f"/proc/{server.pid}/task"):
            os.sched_setaffinity(int(tid), {bench.cpu})
        yield server, path


def _throughput(bench, path, requests, pipeline):
    argv = ["redis-benchmark", "-s", path, "-t", "set", "-n", requests, "-c", PIPELINED_CLIENTS if pipeline > 1 else CLIENTS, "-P", pipeline, "--csv"]
    if bench.other_cpu is not None:
        argv = ["taskset", "-c", str(bench.other_cpu), *argv]
    with started(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as load:
        for line in load.communicate()[0].splitlines():
            if line.startswith('"SET"'):
                return float(line.split(",")[1].strip('"'))
    raise Failure("redis-benchmark said nothing")


@contextlib.contextmanager
def _unprobed(bench, server):
    yield lambda: None


def _ours(optimize):
    @contextlib.contextmanager
    def arm(bench, server):
        with bench.daemon.client() as client:
            probe = Probe(client, server.pid, OURS, {"optimize": optimize})
            with Reader(bench, probe.id) as reader:
                yield lambda: _accounted(probe, reader)
            client.call("target.detach", pid=server.pid)

    return arm


@contextlib.contextmanager
def _counted(bench, server):
    with bench.daemon.client() as client:
        probe = Probe(client, server.pid, OURS, {"optimize": True})
        yield lambda: probe.account()[0]
        client.call("target.detach", pid=server.pid)


def _accounted(probe, reader):
    delivered, missed = reader.totals()
    hits = probe.account()[0]
    if missed or hits != delivered:
        raise Failure(f"{hits} redis commands, {delivered} of them delivered and {missed} missed")
    return hits


@contextlib.contextmanager
def _kernel(bench, server):
    if bench.uprobes is None:
        raise Unavailable(bench.no_uprobes)
    with bench.uprobes.event("p", f"/proc/{server.pid}/exe", FUNCTION, KERNEL) as profile:
        yield profile


@dataclasses.dataclass
class Load:
    label: str
    arm: Callable
    requests: int = 20_000
    pipeline: int = 1
    unprobed: str = "redis-unprobed"  # what it is compared with


def _pipelined(label, arm, requests=1_000_000):
    return Load(label, arm, requests, PIPELINE, "redis-pipelined-unprobed")


ROWS = {
    "redis-unprobed": Load("unprobed", _unprobed),
    "redis-jump": Load("probed, processCommand, 2 arguments, streamed, jump", _ours(True)),
    "redis-ours": Load("probed, the same, breakpoint", _ours(False)),
    "redis-kernel": Load("kernel uprobe, processCommand, 2 arguments", _kernel),
    "redis-pipelined-unprobed": _pipelined("16 in flight: unprobed", _unprobed),
    "redis-pipelined-jump": _pipelined("16 in flight: probed, jump", _ours(True)),
    "redis-pipelined-counted": _pipelined("16 in flight: probed, jump, counted: no reader has the load's CPU", _counted),
    "redis-pipelined-kernel": _pipelined("16 in flight: kernel uprobe", _kernel),
}


def measure(bench, keys, divisor, rounds):
    """{key: [requests per second in each round]}; a row that can't be measured has its reason instead."""
    for program in ("redis-server", "redis-benchmark", "taskset"):
        if shutil.which(program) is None:
            return {key: f"{program} is not installed" for key in keys}
    results = {key: [] for key in keys}
    with tempfile.TemporaryDirectory(prefix="probed-bench-redis-") as directory, _server(bench, directory) as (server, path):
        _throughput(bench, path, 5_000, 1)
        for _ in range(rounds):
            for key in [key for key in keys if isinstance(results[key], list)]:
                try:
                    results[key].append(_one(bench, server, path, ROWS[key], divisor))
                except Unavailable as reason:
                    results[key] = str(reason)
    return results


def _one(bench, server, path, load, divisor):
    requests = load.requests // divisor
    with load.arm(bench, server) as hits:
        throughput = _throughput(bench, path, requests, load.pipeline)
        seen = hits()
        if seen is not None and seen < requests:
            raise Failure(f"{seen} hits of {requests} redis commands")
    return throughput
