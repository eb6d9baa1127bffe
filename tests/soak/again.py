#!/usr/bin/env python3
"""again.py BUILD RUNS LOOPS [NAME]...: the tests of what once harmed targets, again and again on a full machine.

Beside LOOPS busy loops, half of them in sessions of their own, each of the tests below is run until it has tried what it
is about RUNS times (a test that kills twenty daemons counts as twenty). NAMEs choose some of them. Prints what failed as
it fails, and a table. Exit status 1 when anything failed, or a name is unknown.
"""
import contextlib
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
from processes import busy  # noqa: E402

# name: the program, the case, how often the case tries it, and what the environment says for that
TESTS = {
    "left-behind": ("race/race_death", "a private daemon that was killed with its guard*", 20, {"PROBED_TEST_KILLS": "100"}),
    "boot-id": ("race/race_death", "who sees another boot id recovers*", 1, {}),
    "segments": ("live/live_modes", "*traps and calls in 32-bit and 16-bit code*", 2, {}),
    "32-bit-detach": ("live/live_modes", "a thread that never leaves 32-bit code*", 1, {}),
    "second-jumps": ("live/live_text", "K11: every instruction takes a probe*", 8, {}),
    "self-stepping": ("live/live_stacks", "a program that steps itself traps where it does alone*", 3, {}),
    "armed-asleep": ("live/live_syscalls", "a daemon that is killed while it arms*", 40, {"PROBED_TEST_CYCLES": "20"}),
}


def run(build, name):
    """(how long in seconds, its output: empty when it passed)"""
    program, case, _, said = TESTS[name]
    targets = os.path.join(build, "tests", "targets")
    environment = dict(
        os.environ,
        PROBED_BIN=os.path.join(build, "daemon", "probed"),
        PROBECTL_BIN=os.path.join(build, "client", "probectl"),
        TARGETS_DIR=targets,
        LD_LIBRARY_PATH=targets,
        SOURCE_DIR=os.path.dirname(os.path.dirname(HERE)),
        **said,
    )
    began = time.monotonic()
    argv = [os.path.join(build, "tests", program), f"--test-case={case}"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    passed = done.returncode == 0 and "test cases: 1 | 1 passed" in " ".join(done.stdout.split())
    return time.monotonic() - began, "" if passed else done.stdout + done.stderr


def main():
    if len(sys.argv) < 4 or not all(name in TESTS for name in sys.argv[4:]):
        print(__doc__, *TESTS, sep="\n", file=sys.stderr)
        return 1
    build, runs, loops = os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failures = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(busy(loops))
        for name in sys.argv[4:] or TESTS:
            each = TESTS[name][2]
            seconds, tried, failed = 0.0, 0, 0
            try:
                while tried * each < runs:
                    took, output = run(build, name)
                    tried += 1
                    seconds += took
                    if output:
                        failed += 1
                        print(output, flush=True)
            finally:  # also when it is ended before its time
                print(f"{name:16}{tried * each:6} times in {tried:4} runs, {failed} failed; "
                      f"{seconds:.0f} s; load {os.getloadavg()[0]:.1f}", flush=True)
            failures += failed
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
