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

# What is traced, the definition, and the goal in seconds (None: none); without "p " the functions are only looked up.
CASES = {
    "redis-server": ("one function of redis-server", "p redis-server:processCommand", 0.15),
    "libpython": ("a glob over libpython, in gdb", "p libpython3.11:Py*", 0.4),
    "symbols": ("44,445 functions by one glob, listed", "bench-many:many_[0-4]*", 0.5),
    "many": ("as many, probed", "p bench-many:many_[0-4]*", None),
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


TARGETS = {"redis-server": _redis, "libpython": _gdb, "symbols": _many, "many": _many}
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


def _listed(probectl, pid, glob_of_names):
    """Until the last function is listed."""
    environment = dict(os.environ)
    environment.pop("PROBED_SOCKET", None)
    began = time.monotonic()
    argv = [probectl, "functions", "-p", str(pid), glob_of_names]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=PATIENCE)
    seconds = time.monotonic() - began
    if done.returncode == 0 and "private" not in done.stderr:
        raise Failure("a daemon answers at the usual socket: it may know the functions already")
    if done.returncode != 0:
        raise Failure(f"{glob_of_names} was not listed: {done.stderr}")
    return seconds, done.stdout.count("\n")


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
            measured = _seconds if definition.startswith("p ") else _listed
            times = [measured(probectl, pid, definition) for _ in range(rounds)]
        seconds = [t for t, _ in times]
        results[name] = {"probes": times[0][1], "median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
    return results
