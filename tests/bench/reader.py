"""A client that only reads a probe's events and counts them, in C: its own cost hides nothing of the daemon's."""
import os
import signal
import subprocess

from processes import Failure, anywhere, end


class Reader:
    """bench-reader, subscribed as long as the `with` lasts; beside the target, not on its CPU."""

    def __init__(self, bench, probe):
        argv = [bench.program("bench-reader"), bench.daemon.path, str(probe)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=anywhere)
        self.pid = self.process.pid
        if bench.other_cpu is not None:
            os.sched_setaffinity(self.pid, {bench.other_cpu})

    def __enter__(self):
        if self.process.stdout.readline() != "ready\n":
            end(self.process, signal.SIGKILL)
            raise Failure("bench-reader got no subscription")
        return self

    def __exit__(self, *_):
        end(self.process, signal.SIGKILL)

    def totals(self):
        """(delivered, missed), as the daemon says and the reader has seen; ends the subscription."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        counted, told, delivered, missed = map(int, self.process.stdout.readline().split())
        if (counted, told) != (delivered, missed):
            raise Failure(f"{delivered} events delivered and {missed} missed, but {counted} came, and {told} were reported missed")
        return delivered, missed
