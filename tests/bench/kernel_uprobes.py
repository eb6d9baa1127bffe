"""The kernel's own uprobes, through tracefs, in an instance of the tracer's that nobody else uses.

Nothing is left behind: not by an error or a signal (the `with` blocks), and what a killed run left is removed by the next.
"""
import contextlib
import os
import re
import subprocess
import tempfile

from elf_symbol import file_offset
from processes import Failure, Unavailable

PREFIX = "probed_bench_"


def _write(path, text, append=False):
    # uprobe_events opened for truncation removes everybody's events.
    fd = os.open(path, os.O_WRONLY | (os.O_APPEND if append else 0))
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


@contextlib.contextmanager
def tracefs():
    """Its path; mounted in a private directory when nobody has mounted it."""
    if os.geteuid() != 0:
        raise Unavailable("needs root")
    for place in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing"):
        if os.path.exists(f"{place}/uprobe_events"):
            yield place
            return
    directory = tempfile.mkdtemp(prefix="probed-bench-tracefs-")
    try:
        mounted = subprocess.run(["mount", "-t", "tracefs", "none", directory], capture_output=True, text=True)
        if mounted.returncode != 0:
            raise Unavailable(f"tracefs can't be mounted: {mounted.stderr.strip()}")
        try:
            if not os.path.exists(f"{directory}/uprobe_events"):
                raise Unavailable("this kernel has no uprobe events")
            yield directory
        finally:
            subprocess.run(["umount", "-l", directory], check=False)
    finally:
        os.rmdir(directory)


def _alive(pid):
    return os.path.exists(f"/proc/{pid}")


def _remove_leftovers(root):
    for name in os.listdir(f"{root}/instances"):
        if name.startswith(PREFIX) and not _alive(name[len(PREFIX):]):
            _remove_instance(root, name)
    with open(f"{root}/uprobe_events") as file:
        events = re.findall(rf"^\w+:({PREFIX}(\d+))/(\w+) ", file.read(), re.M)
    for group, pid, name in events:
        if not _alive(pid):
            _write(f"{root}/uprobe_events", f"-:{group}/{name}\n", append=True)


def _remove_instance(root, name):
    with contextlib.suppress(OSError):
        _write(f"{root}/instances/{name}/events/enable", "0")
    os.rmdir(f"{root}/instances/{name}")


class Uprobes:
    """Defines and enables events."""

    def __init__(self, root):
        self.root, self.group, self.count = root, f"{PREFIX}{os.getpid()}", 0

    @contextlib.contextmanager
    def event(self, kind, program, function, arguments):
        """A function that tells the number of hits so far, missed ones included."""
        self.count += 1
        name = f"event{self.count}"
        program = os.path.realpath(program)
        definition = f"{kind}:{self.group}/{name} {program}:{file_offset(program, function):#x} {arguments}\n"
        try:
            _write(f"{self.root}/uprobe_events", definition, append=True)
        except OSError as error:
            raise Unavailable(f"the kernel refuses {definition.strip()}: {error.strerror}") from error
        enable = f"{self.root}/instances/{self.group}/events/{self.group}/{name}/enable"
        try:
            _write(enable, "1")
            yield lambda: self._profile(name)
        finally:
            _write(enable, "0")
            _write(f"{self.root}/uprobe_events", f"-:{self.group}/{name}\n", append=True)

    def _profile(self, name):
        with open(f"{self.root}/uprobe_profile") as file:
            for line in file:
                words = line.split()
                if name in words[1:-1]:
                    return sum(map(int, words[words.index(name) + 1:]))  # hits, and where the kernel counts them, misses
        raise Failure(f"the kernel has no profile of {name}")


@contextlib.contextmanager
def uprobes():
    with tracefs() as root:
        _remove_leftovers(root)
        events = Uprobes(root)
        os.mkdir(f"{root}/instances/{events.group}")
        try:
            yield events
        finally:
            _remove_instance(root, events.group)
