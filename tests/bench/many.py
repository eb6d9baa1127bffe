"""Very many probes by one glob: how long until they are armed and until they are jumps, and what that does to the target."""
import statistics
import subprocess
import time

from processes import Failure, PATIENCE, started, wait_until

PROBES = 50_000
GOAL_ARMED, GOAL_PAUSE_MS, GOAL_BYTES = 1.0, 10, 8 << 20
STEP = 0.01  # seconds between looks at the daemon


def _mapped(pid):
    with open(f"/proc/{pid}/maps") as file:
        rows = [line.split() for line in file]
    sizes = {}
    for row in rows:
        begin, end = (int(text, 16) for text in row[0].split("-"))
        sizes[begin] = (end - begin, row[1], row[5] if len(row) > 5 else "")
    return sizes


def _resident(pid):
    """By mapping: bytes of it that are there."""
    sizes, begin = {}, 0
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            words = line.split()
            if words[0] == "Rss:":
                sizes[begin] = int(words[1]) << 10
            elif not words[0].endswith(":"):
                begin = int(words[0].split("-")[0], 16)
    return sizes


def _injected(before, after, resident):
    """Bytes of memory in what is mapped that wasn't; a mapping that was split is none."""
    def is_ours(begin, what):
        _, access, path = what
        return begin not in before and ("probed" in path or not path or "memfd" in path) and access != "rw-p"
    return sum(resident.get(begin, 0) for begin, what in after.items() if is_ours(begin, what))


def _text(pid, program):
    for begin, (size, access, path) in _mapped(pid).items():
        if path.endswith(program) and "x" in access:
            with open(f"/proc/{pid}/mem", "rb") as memory:
                memory.seek(begin)
                return memory.read(size)
    raise Failure(f"{program} has no text")


def _timed(client, method, **params):
    began = time.monotonic()
    result = client.call(method, **params)
    return client.arrived - began, result


def _round(bench):
    argv = [bench.program("bench-many")]
    with started(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process, bench.daemon.client() as client:
        pid = int(process.stdout.readline().split()[1])
        before, text = _mapped(pid), _text(pid, "bench-many")
        result = {"attach": _timed(client, "target.attach", pid=pid)[0]}
        began = time.monotonic()
        result["armed"], added = _timed(client, "probe.add", pid=pid, probes=[{"definition": "p bench-many:many_*"}])
        count = len(added["probes"])
        if count != PROBES:
            raise Failure(f"{count} probes instead of {PROBES}")
        wait_until(lambda: time.sleep(STEP) or client.call("daemon.status")["optimized"] >= PROBES, "50,000 jumps")
        result["optimised"] = time.monotonic() - began
        result["pause_ms"] = client.call("daemon.status")["longestPauseNs"] / 1e6
        result["bytes"] = _injected(before, _mapped(pid), _resident(pid))
        result["removed"], _ = _timed(client, "probe.remove", ids=[probe["id"] for probe in added["probes"]])
        if _text(pid, "bench-many") != text:
            raise Failure("the text isn't what it was")
        result["detach"] = _timed(client, "target.detach", pid=pid)[0]
        process.stdin.close()
        if process.wait(PATIENCE) != 0:
            raise Failure("bench-many was harmed")
    return result


def measure(bench, rounds):
    results = [_round(bench) for _ in range(rounds)]
    return {name: {"median": statistics.median(r[name] for r in results), "min": min(r[name] for r in results),
                   "max": max(r[name] for r in results)} for name in results[0]}
