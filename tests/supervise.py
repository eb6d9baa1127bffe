#!/usr/bin/env python3
"""supervise.py COMMAND...: runs a command and makes sure that nothing it started outlives it.

As a child subreaper (prctl(2)) this process becomes the parent of every orphan below it, however it was daemonised. When
the command has ended, what is still there gets a few seconds to go, is listed on stderr, and is killed by pid.
Exit status: the command's; 125 when it succeeded but left processes behind.
"""
import contextlib
import ctypes
import os
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 5.0


def children():
    me = os.getpid()
    found = []
    for task in os.listdir(f"/proc/{me}/task"):
        with open(f"/proc/{me}/task/{task}/children") as listing:
            found += [int(pid) for pid in listing.read().split()]
    return found


def describe(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        with open(f"/proc/{pid}/comm") as file:
            return f"{pid} {command or '[' + file.read().strip() + ']'}"
    except OSError:
        return f"{pid} (gone meanwhile)"


def reap():
    """Collects every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def leftovers():
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        reap()
        left = children()
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def kill_all():
    """Killing one process may hand its children over to us: go on until none is left."""
    while True:
        reap()
        left = children()
        if not left:
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def main():
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("supervise.py: this kernel has no child subreapers")
    child = os.fork()
    if child == 0:
        try:
            os.execvp(sys.argv[1], sys.argv[1:])
        except OSError as error:
            print(f"supervise.py: {sys.argv[1]}: {error}", file=sys.stderr)
            os._exit(127)
    def pass_on(number, frame):
        with contextlib.suppress(ProcessLookupError):  # it has ended: what it has left is being looked for
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            break
    code = os.waitstatus_to_exitcode(status)
    code = code if code >= 0 else 128 - code
    left = leftovers()
    for pid in left:
        print(f"LEFT BEHIND: process {describe(pid)}", file=sys.stderr)
    kill_all()
    sys.exit(125 if left and code == 0 else code)


main()
