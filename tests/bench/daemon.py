"""Our rows: a probed of the benchmark's own, and a client on its socket."""
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import threading
import time

from processes import Failure, PATIENCE, children_of, comm_of, started, wait_until

ARGUMENTS = "a=%di:s64 b=%si:s64"


class Client:
    """JSON-RPC, one message a line. Events are counted and thrown away, as they come, on a thread of their own."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.last_id = 0
        self.arrived = 0.0  # when the last answer was there, before it was taken apart
        self.answers = {}
        self.events = self.bytes = 0
        self.news = threading.Condition()
        self.ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        pieces = []
        with contextlib.suppress(OSError):
            while chunk := self.socket.recv(1 << 20):
                self.bytes += len(chunk)
                if b"\n" not in chunk:
                    pieces.append(chunk)
                    continue
                arrived = time.monotonic()
                *lines, rest = b"".join([*pieces, chunk]).split(b"\n")
                pieces = [rest]
                for line in lines:
                    self._take(line, arrived)
        with self.news:
            self.ended = True
            self.news.notify_all()

    def _take(self, line, arrived):
        if line.startswith(b'{"jsonrpc":"2.0","method":"events"'):
            self.events += line.count(b'"ip":')
            return
        message = json.loads(line)
        if message.get("method") == "events":
            self.events += len(message["params"]["events"])
        elif "id" in message:
            with self.news:
                self.arrived = arrived
                self.answers[message["id"]] = message
                self.news.notify_all()

    def call(self, method, **params):
        self.last_id += 1
        request = {"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        with self.news:
            if not self.news.wait_for(lambda: self.last_id in self.answers or self.ended, PATIENCE) or self.ended:
                raise Failure(f"{method}: no answer")
            answer = self.answers.pop(self.last_id)
        if "error" in answer:
            raise Failure(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def close(self):
        self.socket.close()


class Daemon:
    def __init__(self, process, path):
        self.process, self.path, self.pid = process, path, process.pid
        # Its tracer is a process of its own, which one of its threads has made.
        self.pids = [self.pid, *(child for child in children_of(self.pid) if comm_of(child) == "probed-tracer")]

    @contextlib.contextmanager
    def client(self):
        client = Client(self.path)
        try:
            yield client
        finally:
            client.close()


@contextlib.contextmanager
def daemon(program):
    with tempfile.TemporaryDirectory(prefix="probed-bench-") as directory:
        path = os.path.join(directory, "probed.sock")
        ready, ready_writer = os.pipe()
        argv = [program, "--socket", path, "--log-level", "error", "--ready-fd", ready_writer]
        with started(argv, pass_fds=[ready_writer], stdin=subprocess.DEVNULL) as process, open(ready, "rb") as ready_file:
            os.close(ready_writer)
            if ready_file.read(1) != b"\n":
                raise Failure(f"{program} did not start")
            yield Daemon(process, path)


class Probe:
    """One probe on a target. account() afterwards checks that nothing was lost unnoticed.

    Options: stream, disabled, filter; optimize: measured as a jump, or else as a breakpoint that stays one.
    """

    def __init__(self, client, pid, definition, options):
        self.client, self.pid, self.subscription, self.hits = client, pid, None, 0
        self.streamed = options.pop("stream", False)
        wanted = options.pop("optimize", False)
        spec = {"definition": definition, "disabled": options.pop("disabled", False), "optimize": wanted}
        if "filter" in options:
            spec["filter"] = options.pop("filter")
        self.id = client.call("probe.add", pid=pid, probes=[spec], maxRate=0, **options)["probes"][0]["id"]
        if wanted:
            wait_until(lambda: self.view()["tier"] == "optimized", f"a jump at {definition}: {self.view().get('tierReason')}")
        if self.streamed:
            self.subscription = client.call("events.subscribe", probes=[str(self.id)])["subscription"]

    def view(self):
        return next(p for p in self.client.call("probe.list", pid=self.pid)["probes"] if p["id"] == self.id)

    def account(self):
        """(hits, filtered, delivered, missed) so far; ends the subscription."""
        delivered = missed = 0
        if self.streamed:  # which takes out what is still in the rings; the profile counts it only then
            totals = self.client.call("events.unsubscribe", subscription=self.subscription)
            delivered, missed = totals["delivered"], totals["missed"]
            wait_until(lambda: self.client.events == delivered, "the events that were delivered")
        profile = next(p for p in self.client.call("probe.profile")["probes"] if p["id"] == self.id)
        if self.streamed and delivered + missed != profile["hits"]:
            raise Failure(f"{profile['hits']} hits, but {delivered} events delivered and {missed} missed")
        return profile["hits"], profile["filtered"], delivered, missed
