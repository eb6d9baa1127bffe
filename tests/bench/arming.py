"""How long a user waits for the first `armed`: probectl, a daemon of its own that has seen nothing yet, symbols read cold."""
import contextlib
import glob
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from processes import Failure, PATIENCE, end, started

# What is traced, the definition, and the goal in seconds.
CASES = {
    "redis-server": ("one function of redis-server", "p redis-server:processCommand", 0.15),
    "libpython": ("a glob over libpython, in gdb", "p libpython3.11:Py*", 0.4),
    "symbols": ("40,000 functions by one glob", "p bench-many:many_[0-3]*", 0.5),
}


@contextlib.contextmanager
def _redis(_):
    with tempfile.TemporaryDirectory(prefix="probed-bench-arming-") as folder:
        socket = f"{folder}/redis.sock"
        argv = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder]
        with started(argv, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + PATIENCE
            while not os.path.exists(socket):
                if time.monotonic() > deadline:
                    raise Failure("redis-server doesn't begin")
                time.sleep(0.01)
            yield process.pid


@contextlib.contextmanager
def _gdb(_):
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with started(["gdb", "-nx", "-q"], **options) as process:
        process.stdin.write("python print('re' + 'ady')\n")
        process.stdin.flush()
        while "ready" not in process.stdout.readline():
            if process.poll() is not None:
                raise Failure("gdb ended")
        yield process.pid


@contextlib.contextmanager
def _many(bench):
    with started([bench.program("bench-many")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield int(process.stdout.readline().split()[1])


TARGETS = {"redis-server": _redis, "libpython": _gdb, "symbols": _many}
NEEDS = {"redis-server": "redis-server", "libpython": "gdb"}


def _loads_libpython():
    """Debian 12's gdb does."""
    return bool(glob.glob("/usr/lib/*/libpython3.11.so.1*"))


def _seconds(probectl, pid, definition):
    """From the command to its line `armed`, and what that says."""
    with tempfile.TemporaryDirectory(prefix="probed-bench-arming-") as folder:
        environment = dict(os.environ, PROBED_SOCKET=f"{folder}/none.sock")
        environment.pop("DEBUGINFOD_URLS", None)
        argv = [probectl, "trace", "-p", str(pid), "-e", definition, "-o", "/dev/null"]
        began = time.monotonic()
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            said = ""
            for line in process.stderr:
                if line.startswith("armed"):
                    return time.monotonic() - began, int(line.split()[1].replace(",", ""))
                said = line.strip()
            raise Failure(f"{definition} was not armed: {said}")
        finally:
            end(process, 2)


def measure(bench, rounds):
    """By case: its times in seconds and the number of its probes, or why it wasn't measured."""
    probectl = bench.built("client/probectl")
    results = {}
    for name, (_, definition, _) in CASES.items():
        needed = NEEDS.get(name)
        if (needed and not shutil.which(needed)) or (name == "libpython" and not _loads_libpython()):
            results[name] = f"needs {needed}"
            continue
        with TARGETS[name](bench) as pid:
            times = [_seconds(probectl, pid, definition) for _ in range(rounds)]
        seconds = [t for t, _ in times]
        results[name] = {"probes": times[0][1], "median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
    return results
