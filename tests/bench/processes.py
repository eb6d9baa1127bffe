"""Processes the benchmark starts: what is measured, and the accounting of CPU time.

Everything started here ends with its `with` block, and with us: the kernel kills the target when its parent dies.
"""
import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import time


class Failure(Exception):
    """A measurement that can't be trusted, or couldn't be made."""


class Unavailable(Exception):
    """A peer that this machine doesn't have; the text says why."""


PATIENCE = 60.0  # seconds for anything to get ready; the machine may be busy


def wait_until(condition, what, limit=PATIENCE):
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise Failure(f"{what}: nothing after {limit:.0f} s")
        time.sleep(0.002)


def anywhere():
    """In a child, before exec: every CPU is allowed."""
    os.sched_setaffinity(0, range(os.cpu_count()))


def end(process, how=signal.SIGTERM, patience=10.0):
    if process.poll() is None:
        process.send_signal(how)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()


@contextlib.contextmanager
def started(argv, how=signal.SIGTERM, **options):
    process = subprocess.Popen([str(a) for a in argv], preexec_fn=anywhere, **options)
    try:
        yield process
    finally:
        end(process, how)


@contextlib.contextmanager
def busy(loops):
    """Meanwhile so many endless loops run, every second one in a session of its own, which the kernel gives a share of its own."""
    with contextlib.ExitStack() as stack:
        for i in range(loops):
            stack.enter_context(started(["sh", "-c", "while :; do :; done"], start_new_session=i % 2 == 1))
        yield


def cpu_ns(pid):
    """Nanoseconds of CPU time that the process's present threads have had (the scheduler's own count)."""
    total = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/schedstat") as file:
                total += int(file.read().split()[0])
    return total


def children_of(pid):
    """The processes that a process's threads have made; none when it is gone."""
    children = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/children") as file:
                children += [int(word) for word in file.read().split()]
    return children


def comm_of(pid):
    """The name of a process; empty when it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    return ""


@dataclasses.dataclass
class Sample:
    """One timed loop. ns: of wall time; cpu_ns: of CPU time, target and tracer; both per call."""
    calls: int
    ns: float
    cpu_ns: float
    stops: float


class Target:
    """bench-target, ready to call its function."""

    def __init__(self, process, function, threads):
        self.process, self.function, self.threads = process, function, threads
        self.calls = 0
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
        words = process.stdout.readline().split() if ready else []
        if len(words) != 3 or words[0] != "ready":
            raise Unavailable(f"{os.path.basename(process.args[0])} did not start the target")
        self.pid, self.address = int(words[1]), int(words[2], 16)

    def go(self, calls, tracer_pids=(), how="go {}"):
        """Each thread makes `calls` calls; tracer_pids: whose CPU time is part of the cost; how: bench-target's command."""
        before = sum(map(cpu_ns, tracer_pids))
        self.process.stdin.write(how.format(calls) + "\n")
        self.process.stdin.flush()
        words = self.process.stdout.readline().split()
        if len(words) != 5:
            raise Failure(f"{self.function}: the target died")
        expected = self.threads * (calls * (calls - 1) // 2 + 7 * calls)
        if int(words[4]) != expected:
            raise Failure(f"{self.function}: checksum {words[4]} instead of {expected}: the target was harmed")
        total = calls * self.threads
        self.calls += total
        cpu = float(words[1]) * 1e9 + sum(map(cpu_ns, tracer_pids)) - before
        return Sample(total, float(words[0]) * 1e9 / total, cpu / total, int(words[2]) / total)

    def finish(self):
        """Its input ends, and so does it. False: it was killed."""
        self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE) == 0
        except subprocess.TimeoutExpired:
            raise Failure("the target does not end") from None

    def first_byte(self):
        """Of the function, as it is now."""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), 1, self.address)[0]


@contextlib.contextmanager
def target(program, function, threads, cpu, prefix=()):
    """prefix: a command that starts it."""
    argv = [*prefix, program, function, threads, cpu]
    with started(argv, signal.SIGKILL, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                 text=True) as process:
        yield Target(process, function, threads)
