"""The table's rows: how each tracer is armed on a target, and how its word on the number of hits is checked.

A row's arm(bench, target) is a context manager; the target is measured inside. It yields a Meter and checks afterwards.
"""
import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable

from daemon import ARGUMENTS, Probe
from processes import Failure, Unavailable, started, wait_until

NOP, COPY, PUSH = "bench_nop", "bench_copy", "bench_push"
NOP_LENGTH = 5


@dataclasses.dataclass
class Meter:
    pids: tuple = ()  # whose CPU time is part of a hit's cost, besides the target's
    info: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Row:
    key: str
    label: str
    function: str
    calls: int  # of each thread, in a full run
    arm: Callable
    threads: int = 1
    pinned: bool = True  # the target, to one CPU
    apart: bool = False  # each of its threads on a CPU of its own
    rounds: int = 1000  # at most
    prefix: Callable = None  # (bench, directory) -> a command to start the target under
    how: str = "go {}"  # bench-target's command for so many calls
    program: str = "bench-target"


def check_hits(target, seen, who):
    if seen != target.calls:
        raise Failure(f"{who}: {seen} hits of {target.calls} calls")


@contextlib.contextmanager
def nothing(bench, target):
    yield Meter()


# ---- the bare loop ----------------------------------------------------------------------------------------------------


def bare(where, *options):
    """where: "same" or "other" CPU than the target's, or "any"."""

    @contextlib.contextmanager
    def arm(bench, target):
        cpu = {"same": bench.cpu, "other": bench.other_cpu, "any": -1}[where]
        if cpu is None:
            raise Unavailable("this machine has one CPU")
        argv = [bench.program("bench-ptrace-loop"), target.pid, f"{target.address:x}", NOP_LENGTH, cpu, *options]
        with started(argv, signal.SIGKILL, stdout=subprocess.PIPE, text=True) as loop:
            if loop.stdout.readline() != "armed\n":
                raise Failure("bench-ptrace-loop did not get ready")
            yield Meter((loop.pid,))
            # It lives as long as the target does: its breakpoint has no other owner.
            target.finish()
            check_hits(target, int(loop.stdout.readline()), "the bare loop")

    return arm


# ---- ours -------------------------------------------------------------------------------------------------------------


def ours(arguments="", kind="p", stream=False, baseline=False, hits=True, lossy=True, **options):
    """kind: r for the pair of entry and return. hits: whether the calls reach the probe; a disabled one is not reached. A
    filter turns all of them away.

    lossy: events may be missed.
    """

    @contextlib.contextmanager
    def arm(bench, target):
        daemon = bench.baseline if baseline else bench.daemon
        if daemon is None:
            raise Unavailable("no --baseline was given")
        definition = f"{kind}:bench/{target.function} {target.address:#x} {arguments}"
        with daemon.client() as client:
            probe = Probe(client, target.pid, definition, {**options, "stream": stream})
            meter = Meter(daemon.pids)
            yield meter
            counted, filtered, delivered, missed = probe.account()
            if "filter" in options:
                counted += filtered
            if missed and not lossy:
                raise Failure(f"{missed} of {counted} hits found the ring full: what was measured is not recording")
            check_hits(target, counted + (0 if hits else target.calls), "probed")
            meter.info |= {"delivered": delivered, "missed": missed} if stream else {}
            client.call("target.detach", pid=target.pid)

    return arm


# A detour records faster than anybody reads: a burst fits the ring, and is read while the target naps.
BURST, NAP_US = 4_000, 15_000
IN_BURSTS = f"burst {{}} {BURST} {NAP_US}"


def optimised(arguments="", **options):
    return ours(arguments, optimize=True, lossy=False, **options)


# ---- the kernel's uprobes -----------------------------------------------------------------------------------------------


def kernel(kind, arguments):
    @contextlib.contextmanager
    def arm(bench, target):
        if bench.uprobes is None:
            raise Unavailable(bench.no_uprobes)
        with bench.uprobes.event(kind, bench.program("bench-target"), target.function, arguments) as profile:
            yield Meter()
            check_hits(target, profile(), "the kernel")

    return arm


# ---- other programs -----------------------------------------------------------------------------------------------------


def tool(name):
    path = shutil.which(name)
    if path is None:
        raise Unavailable(f"{name} is not installed")
    return path


@contextlib.contextmanager
def attached(argv, target, first_byte=0xCC, **options):
    """A tool that plants a breakpoint (or a jump) in the target some time after its start, and ends with the target."""
    with started(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                 env={**os.environ, "DEBUGINFOD_URLS": ""}, **options) as process:
        def armed():
            if process.poll() is not None:
                raise Unavailable(f"{os.path.basename(argv[0])} gave up on the target")
            return target.first_byte() == first_byte
        wait_until(armed, os.path.basename(argv[0]))
        yield process
        target.finish()


def gdb(commands):
    @contextlib.contextmanager
    def arm(bench, target):
        with tempfile.NamedTemporaryFile("w", suffix=".gdb") as script:
            script.write("set pagination off\nset confirm off\n")
            script.write(commands.format(address=f"*{target.address:#x}") + "\ncontinue\n")
            script.flush()
            argv = [tool("gdb"), "-nx", "-q", "-batch", "-p", str(target.pid), "-x", script.name]
            with attached(argv, target, stdout=subprocess.DEVNULL) as process:
                yield Meter((process.pid,))

    return arm


IN_PROCESS_AGENT = "/usr/lib/libinproctrace.so"  # Debian's gdbserver has it
GDB_FAST = """target remote | gdbserver --once --attach - {pid}
set circular-trace-buffer on
ftrace *{address:#x}
actions
collect $rdi,$rsi
end
tstart
continue
"""


@contextlib.contextmanager
def gdb_fast(bench, target):
    with tempfile.NamedTemporaryFile("w", suffix=".gdb") as script:
        script.write("set pagination off\nset confirm off\nset sysroot /\n")
        script.write(GDB_FAST.format(pid=target.pid, address=target.address))
        script.flush()
        argv = [tool("gdb"), "-nx", "-q", "-batch", "-x", script.name, bench.program("bench-target-nopie")]
        with attached(argv, target, first_byte=0xE9, stdout=subprocess.DEVNULL):
            yield Meter()


def gdb_fast_prefix(bench, directory):
    tool("gdbserver")
    if not os.path.exists(IN_PROCESS_AGENT):
        raise Unavailable(f"{IN_PROCESS_AGENT} is not there")
    return ["env", f"LD_PRELOAD={IN_PROCESS_AGENT}"]


@contextlib.contextmanager
def ltrace(bench, target):
    argv = [tool("ltrace"), "-p", str(target.pid), "-x", target.function, "-o", "/dev/null"]
    with attached(argv, target) as process:
        yield Meter((process.pid,))


@contextlib.contextmanager
def bpftrace(bench, target):
    script = f"uprobe:{bench.program('bench-target')}:{target.function} {{ @hits = count(); }}"
    with attached([tool("bpftrace"), "-e", script], target, stdout=subprocess.PIPE, text=True) as process:
        yield Meter()
        process.send_signal(signal.SIGINT)
        hits = re.search(r"@hits: (\d+)", process.communicate()[0])
        check_hits(target, int(hits[1]) if hits else 0, "bpftrace")


@contextlib.contextmanager
def uftrace(bench, target):
    if target.first_byte() == 0x0F:
        raise Unavailable("uftrace left the function as it is")
    yield Meter()


def uftrace_prefix(bench, directory):
    return [tool("uftrace"), "record", "--no-libcall", "-P", "bench_*", "-d", os.path.join(directory, "uftrace")]


# ---- the table ----------------------------------------------------------------------------------------------------------

GDB_BREAK = "break {address}\ncommands\nsilent\ncontinue\nend"
GDB_DPRINTF = 'dprintf {address},"%ld %ld\\n",$rdi,$rsi'
KERNEL_ARGUMENTS = "a=%di:s64 b=%si:s64"
FEW, MANY, FREE = 1_500, 20_000, 20_000_000

SIX_ARGUMENTS = "a=%di:s64 b=%si:s64 c=%dx d=%cx e=%r8 f=%r9"
STRING = "text=+0(%dx):string"
BURSTS = 200_000


def recorded(key, label, arguments="", function=NOP, kind="p", **options):
    return Row(key, label, function, BURSTS, optimised(arguments, kind=kind, stream=True), how=IN_BURSTS, **options)


GROUPS = {
    "The target alone": [
        Row("unprobed", "unprobed call", NOP, FREE, nothing),
    ],
    "A bare ptrace loop: one stop, nothing recorded": [
        Row("bare", "tracer on the target's CPU", NOP, MANY, bare("same")),
        Row("bare-other-cpu", "tracer on another CPU", NOP, MANY // 4, bare("other")),
        Row("bare-anywhere", "both where the scheduler likes", NOP, MANY, bare("any"), pinned=False),
        Row("bare-2-threads", "two threads, anywhere", NOP, MANY // 2, bare("any"), threads=2, pinned=False),
    ],
    "What its parts cost: the bare loop on the target's CPU, changed": [
        Row("part-pc-only", "writes the pc, not all registers", NOP, MANY, bare("same", "pc-only")),
        Row("part-siginfo", "also asks for the signal's cause", NOP, MANY, bare("same", "siginfo")),
        Row("part-read-cpu", "also reads the CPU's number", NOP, MANY, bare("same", "read-cpu")),
        Row("part-sigwait", "waits by sigtimedwait, then waitpid", NOP, MANY, bare("same", "sigwait")),
    ],
    "probed, breakpoint tier": [
        Row("ours", "2 arguments, streamed to a client", NOP, MANY, ours(ARGUMENTS, stream=True)),
        Row("ours-counted", "counted only", NOP, MANY, ours()),
        Row("ours-filtered", "2 arguments, a filter turns it away", NOP, MANY, ours(ARGUMENTS, filter="a == -1")),
        Row("ours-copy", "2 arguments, streamed, copied instruction", COPY, MANY, ours(ARGUMENTS, stream=True)),
        Row("ours-copy-counted", "counted only, copied instruction", COPY, MANY, ours()),
        Row("ours-push", "2 arguments, streamed, 1-byte instruction", PUSH, MANY, ours(ARGUMENTS, stream=True)),
        Row("ours-stepped", "2 arguments, streamed, stepped", COPY, MANY // 2, ours(ARGUMENTS, stream=True, **{"x-step": True})),
        Row("ours-return", "entry and return, result, streamed", PUSH, MANY // 2, ours("result=$retval", kind="r", stream=True)),
        Row("ours-return-counted", "entry and return, counted only", PUSH, MANY // 2, ours(kind="r")),
        Row("ours-return-filtered", "a filter turns the entry away", PUSH, MANY // 2, ours("a=$arg1:s64", kind="r", filter="a == -1")),
        Row("ours-disabled", "disabled", NOP, FREE, ours(ARGUMENTS, disabled=True, hits=False)),
        Row("ours-anywhere", "2 arguments, streamed; target anywhere", NOP, MANY, ours(ARGUMENTS, stream=True), pinned=False),
        Row("ours-2-threads", "the same, two threads", NOP, MANY // 2, ours(ARGUMENTS, stream=True), threads=2, pinned=False),
    ],
    "probed, optimised tier: a jump; recorded in bursts that fit the ring": [
        recorded("jump-none", "no argument, streamed to a client"),
        recorded("jump", "2 arguments, streamed", ARGUMENTS),
        recorded("jump-copy", "2 arguments, streamed, ordinary instructions", ARGUMENTS, COPY),
        recorded("jump-6", "6 arguments, streamed", SIX_ARGUMENTS),
        recorded("jump-string", "a string of 40 bytes, streamed", STRING),
        recorded("jump-2-threads", "2 arguments, two threads", ARGUMENTS, threads=2, pinned=False, apart=True),
        Row("jump-filtered", "2 arguments, a filter turns it away", NOP, FREE, optimised(ARGUMENTS, filter="a == -1")),
        Row("jump-counted", "counted only", NOP, FREE, optimised()),
        recorded("jump-return", "entry and return, result, streamed", "result=$retval", kind="r"),
        recorded("jump-return-2", "entry and return, argument and result, streamed", "a=$arg1:s64 result=$retval", kind="r"),
        Row("jump-return-counted", "entry and return, counted only", NOP, FREE, optimised(kind="r")),
        Row("jump-return-filtered", "a filter turns the entry away", NOP, FREE,
            optimised("a=$arg1:s64", kind="r", filter="a == -1")),
        Row("jump-counted-2-threads", "counted only, two threads", NOP, FREE, optimised(), threads=2, pinned=False, apart=True),
    ],
    "--baseline: another build of probed": [
        Row("baseline", "2 arguments, streamed to a client", NOP, MANY, ours(ARGUMENTS, stream=True, baseline=True)),
        Row("baseline-counted", "counted only", NOP, MANY, ours(baseline=True)),
        Row("baseline-copy", "2 arguments, streamed, copied instruction", COPY, MANY, ours(ARGUMENTS, stream=True, baseline=True)),
        Row("baseline-2-threads", "2 arguments, two threads, anywhere", NOP, MANY // 2, ours(ARGUMENTS, stream=True, baseline=True),
            threads=2, pinned=False),
    ],
    "The kernel's uprobes, through tracefs: 2 arguments, recorded": [
        Row("kernel-push", "int3, emulated instruction (push)", PUSH, MANY, kernel("p", KERNEL_ARGUMENTS)),
        Row("kernel-copy", "int3, copied instruction, stepped", COPY, MANY, kernel("p", KERNEL_ARGUMENTS)),
        Row("kernel-nop5", "5-byte nop", NOP, MANY, kernel("p", KERNEL_ARGUMENTS)),
        Row("kernel-return", "uretprobe (the result)", PUSH, MANY, kernel("r", "result=$retval")),
        Row("kernel-return-nop5", "uretprobe on a 5-byte nop", NOP, MANY, kernel("r", "result=$retval")),
        Row("kernel-2-threads", "int3, emulated, two threads", PUSH, MANY // 2, kernel("p", KERNEL_ARGUMENTS), threads=2,
            pinned=False, apart=True),
    ],
    "Other tracers": [
        Row("gdb", "gdb, breakpoint with silent, continue", NOP, FEW, gdb(GDB_BREAK), rounds=3),
        Row("gdb-dprintf", "gdb, dprintf of 2 arguments", NOP, FEW, gdb(GDB_DPRINTF), rounds=3),
        Row("gdb-fast", "gdb, fast tracepoint, 2 arguments; not PIE", NOP, MANY * 10, gdb_fast, rounds=3, prefix=gdb_fast_prefix,
            program="bench-target-nopie"),
        Row("ltrace", "ltrace -x", NOP, FEW, ltrace, rounds=3),
        Row("bpftrace", "bpftrace, count()", PUSH, MANY, bpftrace, rounds=3),
        Row("uftrace", "uftrace, dynamic patching, entry and exit", NOP, FREE // 20, uftrace, rounds=3, prefix=uftrace_prefix),
    ],
}
