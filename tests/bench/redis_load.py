"""redis-benchmark against a redis-server whose processCommand is probed."""
import contextlib
import os
import shutil
import subprocess
import tempfile

from daemon import Probe
from processes import Failure, Unavailable, started, wait_until

FUNCTION = "processCommand"
# processCommand(client *c): the client, and at byte 72 (redis 7.0 of Debian 12) the number of the command's words.
OURS = f"p:bench/command {FUNCTION} c=$arg1 argc=+72($arg1):s32"
KERNEL = "c=%di argc=+72(%di):s32"
CLIENTS = 4


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


def _throughput(bench, path, requests):
    argv = ["redis-benchmark", "-s", path, "-t", "set", "-n", requests, "-c", CLIENTS, "--csv"]
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


@contextlib.contextmanager
def _ours(bench, server):
    with bench.daemon.client() as client:
        probe = Probe(client, server.pid, OURS, {"stream": True})
        yield lambda: probe.account()[0]
        client.call("target.detach", pid=server.pid)


@contextlib.contextmanager
def _kernel(bench, server):
    if bench.uprobes is None:
        raise Unavailable(bench.no_uprobes)
    with bench.uprobes.event("p", f"/proc/{server.pid}/exe", FUNCTION, KERNEL) as profile:
        yield profile


ROWS = {
    "redis-unprobed": ("unprobed", _unprobed),
    "redis-ours": ("probed, processCommand, 2 arguments, streamed", _ours),
    "redis-kernel": ("kernel uprobe, processCommand, 2 arguments", _kernel),
}


def measure(bench, keys, requests, rounds):
    """{key: [requests per second in each round]}; a row that can't be measured has its reason instead."""
    for program in ("redis-server", "redis-benchmark", "taskset"):
        if shutil.which(program) is None:
            return {key: f"{program} is not installed" for key in keys}
    results = {key: [] for key in keys}
    with tempfile.TemporaryDirectory(prefix="probed-bench-redis-") as directory, _server(bench, directory) as (server, path):
        _throughput(bench, path, requests // 4)
        for _ in range(rounds):
            for key in [key for key in keys if isinstance(results[key], list)]:
                try:
                    results[key].append(_one(bench, server, path, ROWS[key][1], requests))
                except Unavailable as reason:
                    results[key] = str(reason)
    return results


def _one(bench, server, path, arm, requests):
    with arm(bench, server) as hits:
        throughput = _throughput(bench, path, requests)
        seen = hits()
        if seen is not None and seen < requests:
            raise Failure(f"{seen} hits of {requests} redis commands")
    return throughput
