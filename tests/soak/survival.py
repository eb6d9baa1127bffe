#!/usr/bin/env python3
"""Real programs live on when the daemon that traces them is killed. tests/soak/programs builds all and starts this.

Again and again a daemon of our own arms functions of a program and of libc. It is killed in the middle of that, when it
is done, or while they are taken out. Then nobody may trace it any more, nothing of ours may be in its text, and
it must go on and compute what is right. A program is started anew only when it was lost, and every 30 kills.
Ends with a table. Exit status 1 when more than one in 1,000 kills has harmed a program, or any of fewer.
"""
import argparse
import collections
import contextlib
import dataclasses
import glob
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))  # its client and its processes
import workloads  # noqa: E402
from daemon import Client  # noqa: E402
from processes import Failure, end, wait_until  # noqa: E402

PATIENCE = 20.0 * float(os.environ.get("PROBED_TEST_PATIENCE", "1"))  # seconds
RENEW_AFTER = 30  # kills; each leaves up to 20 MiB of addresses near the code, where there are 2 GiB
MOST_PROBES = 4000
MOST_TEXT = 16 << 20  # bytes of one mapping that is compared with its file
TIERS = {
    "breakpoint": ({"optimize": False}, {}),
    "stepped": ({"optimize": False}, {"x-step": True}),
    "jumps": ({"optimize": True}, {}),
}
MOMENTS = {"armed": 4, "arming": 4, "removing": 2}  # and how often each is chosen
# Most arguments of most functions are no pointers: these are bad ones, mostly.
DEREFERENCED = " a=+0($arg1):string b=+8(+0($arg2)):x64"


# ---- programs --------------------------------------------------------------------------------------------------------


def allow_core_dumps():
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Program:
    """One that runs, and what it says."""

    def __init__(self, built, work, cores):
        self.first, self.last = [], collections.deque(maxlen=8)  # lines without the beats
        self.beats = self.value = 0
        self.wrong = []
        self.noise = built.workload.noise
        os.makedirs(work)
        self.process = subprocess.Popen(
            built.argv(work), cwd=work, env=built.environment(TMPDIR=work), start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
            preexec_fn=allow_core_dumps if cores else None)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            begun = lambda: self.value > 2 or self.process.poll() is not None  # noqa: E731
            wait_until(begun, f"{built.workload.name} doesn't begin")
            self.pid = self._find_process(built.workload.process)
            self.unlike_file = set(self.differences())
        except Failure:
            self.stop()
            raise
        self.kills = 0

    def _find_process(self, of):
        if self.process.poll() is not None:
            raise Failure(f"it ended at once: {self.last_words()}")
        if of is None:
            return self.process.pid
        wait_until(lambda: of(self.process.pid), "the process that is traced")
        return of(self.process.pid)

    def _read(self):
        for line in self.process.stdout:
            if found := re.search(r"\bbeat (\d+)", line):
                self.beats += 1
                self.value = int(found[1])
                continue
            if line.strip() and not (self.noise and re.search(self.noise, line)):
                (self.first if len(self.first) < 8 else self.last).append(line.rstrip()[:160])
            if "WRONG" in line or "WARNING: ThreadSanitizer" in line:
                self.wrong.append(line.strip())

    def status(self, tid=None):
        try:
            with open(f"/proc/{self.pid}/task/{tid or self.pid}/status", errors="replace") as file:
                return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        except OSError:
            return {}

    def alive(self):
        """Its own end is taken notice of as late as possible: it is nobody's to collect as long as it is traced."""
        state = self.status().get("State", "Z")
        return state[0] not in "ZX" and (self.pid == self.process.pid or self.process.poll() is None)

    def tracer(self):
        """A pid; 0: nobody traces any thread."""
        with contextlib.suppress(OSError):
            for tid in os.listdir(f"/proc/{self.pid}/task"):
                if tracer := int(self.status(tid).get("TracerPid", 0)):
                    return tracer
        return 0

    def goes_on(self):
        """Every worker of it has done some rounds more, as far as it says so."""
        value, beats = self.value, self.beats
        deadline = time.monotonic() + PATIENCE
        while self.value < value + 2 or self.beats < beats + 3:
            if not self.alive() or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def differences(self):
        """Where its text isn't what its files have: [(file, offset)]. Of ELF files that aren't very large. SBCL's core is
        mapped as executable, too, and SBCL writes to it."""
        found = []
        with contextlib.suppress(OSError):
            with open(f"/proc/{self.pid}/maps") as maps, open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
                for line in maps:
                    found += self._differences_in(line, memory)
        return found

    @staticmethod
    def _differences_in(line, memory):
        words = line.split(maxsplit=5)
        if len(words) < 6 or words[1] != "r-xp" or not words[5].startswith("/"):
            return []
        start, finish = (int(number, 16) for number in words[0].split("-"))
        if finish - start > MOST_TEXT:
            return []
        path, offset = words[5].rstrip(), int(words[2], 16)
        try:
            with open(path, "rb") as file:
                if file.read(4) != b"\x7fELF":
                    return []
                wanted = os.pread(file.fileno(), finish - start, offset)
            actual = os.pread(memory.fileno(), len(wanted), start)
        except OSError:
            return []
        if actual == wanted:
            return []
        return [(os.path.basename(path), hex(offset + i)) for i in range(len(actual)) if actual[i] != wanted[i]][:8]

    def last_words(self):
        """How it ended, and the last that it has said."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5 if self.pid == self.process.pid else 0.01)
        self.reader.join(0.5)
        code = self.process.returncode
        how = "a process of it ended" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            how = signal.Signals(-code).name
        return " | ".join([how, *self.first, *self.last])[:1000]

    def stuck_threads(self):
        """Where its threads are, a line for each place and how many are there."""
        places = collections.Counter()
        with contextlib.suppress(OSError):
            for tid in os.listdir(f"/proc/{self.pid}/task"):
                status = self.status(tid)
                with contextlib.suppress(OSError):
                    with open(f"/proc/{self.pid}/task/{tid}/syscall") as file:
                        call = " ".join(file.read().split()[0::8])
                    places[f"{status.get('State', '?')} in call {call} blocks {status.get('SigBlk')}"] += 1
        return " | ".join(f"{count} x {place}" for place, count in places.most_common(8))

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        end(self.process, signal.SIGKILL)


# ---- daemons ---------------------------------------------------------------------------------------------------------


class Daemon:
    def __init__(self, probed, directory, number):
        self.probed = probed
        self.socket, self.state = f"{directory}/{number}.sock", f"{directory}/{number}.state"
        self.log = open(f"{directory}/{number}.log", "w+")
        ready, writer = os.pipe()
        argv = [probed, "--socket", self.socket, "--state-dir", self.state, "--log-level", "info"]
        self.process = subprocess.Popen([*argv, "--ready-fd", str(writer)], pass_fds=[writer],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        os.close(writer)
        with open(ready, "rb") as file:
            if file.read(1) != b"\n":
                raise Failure(f"{probed} did not start: {self.said()}")

    def journals(self):
        return glob.glob(f"{self.state}/*.journal")

    def guard(self):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                if b"--guard" in words and self.state.encode() in words:
                    return int(name)
        return 0

    def kill(self, tracer, guard, how=signal.SIGKILL):
        """With the processes `tracer` and `guard`, if they aren't 0: the guard first, which has nothing to wait for."""
        for pid in (guard, tracer, self.process.pid):
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
        self.process.wait()

    def recover(self, prefix=()):
        """What it says when it fails."""
        argv = [*prefix, self.probed, "--recover", "--socket", self.socket, "--state-dir", self.state]
        done = subprocess.run(argv, capture_output=True, text=True)
        # A container's console makes one stream of both.
        return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def close(self):
        self.kill(0, 0)
        self.log.close()


class Call(threading.Thread):
    """One call, on a thread: its daemon may die meanwhile. `answer` and `problem` are None until it has come back."""

    def __init__(self, client, method, **params):
        super().__init__(daemon=True)
        self.client, self.method, self.params = client, method, params
        self.answer = self.problem = None
        self.began = time.monotonic()
        self.seconds = 0.0
        self.start()

    def run(self):
        try:
            self.answer = self.client.call(self.method, **self.params)
        except (Failure, OSError) as failure:
            self.problem = str(failure)
        self.seconds = time.monotonic() - self.began


# ---- kills -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Plan:
    tier: str
    moment: str
    arguments: bool
    definitions: list
    share: float  # of the time that the moment lasts, 0 to 1

    def __str__(self):
        return f"{self.tier}, {self.moment} at {self.share:.2f}, {' '.join(self.definitions)}"


@dataclasses.dataclass
class Row:
    kills: int = 0
    untraced: int = 0  # attempts at which nothing was traced
    lost: int = 0
    stuck: int = 0
    wrong: int = 0
    before: int = 0  # lost before the daemon was killed
    slowest: float = 0  # milliseconds from a kill until nobody traced it and no journal was left

    def harmed(self):
        return self.lost + self.stuck + self.wrong + self.before

    def add(self, other):
        for name in ("kills", "untraced", "lost", "stuck", "wrong", "before"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slowest = max(self.slowest, other.slowest)


class Attempt:
    """One daemon's life. `outcome` is a field of Row, or "" when all is well; `cause` says more."""

    def __init__(self, options, program, daemon, plan, durations):
        self.options, self.program, self.daemon, self.plan, self.durations = options, program, daemon, plan, durations
        self.outcome, self.cause, self.counted = "", "", False
        self.let_go = 0.0  # milliseconds behind the kill

    def end(self, outcome, cause):
        self.outcome, self.cause = outcome, cause
        return False

    def run(self):
        client = Client(self.daemon.socket)
        try:
            if self._trace(client):
                self._kill()
        finally:
            client.close()
        if self.counted:
            self._check()

    def _trace(self, client):
        """False: it can't be killed in time; `outcome` says why."""
        of_each, of_all = TIERS[self.plan.tier]
        definitions = [{"definition": definition, **of_each} for definition in self.plan.definitions]
        adding = Call(client, "probe.add", pid=self.program.pid, probes=definitions, maxRate=0, **of_all)
        wait_until(lambda: adding.seconds or self.daemon.journals() or not self.program.alive(), "a journal")
        if self.plan.moment == "arming":
            adding.join(self.durations["arming"] * self.plan.share)
        else:
            adding.join()
            if not adding.problem:
                self.durations["arming"] = 0.5 * self.durations["arming"] + 0.6 * adding.seconds
        if adding.problem:
            return self._refused(adding.problem)
        if self.plan.moment != "arming":
            self._wait_armed(client)
        if self.plan.moment == "removing":
            removing = Call(client, "probe.remove", all=True)
            removing.join(self.durations["removing"] * self.plan.share)
            if removing.seconds:
                self.durations["removing"] = max(0.02, 0.7 * self.durations["removing"])
            else:
                self.durations["removing"] *= 1.1
        return True

    def _refused(self, problem):
        return self.end("untraced" if self.program.alive() else "before", problem)

    def _wait_armed(self, client):
        if self.plan.tier == "jumps":
            deadline = time.monotonic() + 2
            with contextlib.suppress(Failure, OSError):
                while client.call("daemon.status")["optimized"] == 0 and time.monotonic() < deadline:
                    time.sleep(0.005)
        time.sleep(0.3 * self.plan.share)  # a random moment is the point

    def _kill(self):
        tracer, guard = 0, 0
        if self.options.all:
            guard = self.daemon.guard()
        tracer = self.program.tracer()
        if not self.program.alive():
            return self.end("before", self.program.last_words())
        if not tracer or not self.daemon.journals():
            return self.end("untraced", "nothing was traced at that moment")
        self.counted = True
        how = signal.SIGTERM if self.options.term else signal.SIGKILL
        self.daemon.kill(self._process_of(tracer) if self.options.all else 0, guard, how)
        if self.options.all and (problem := self.daemon.recover()):
            self.cause = f"recover: {problem}; "
        return True

    @staticmethod
    def _process_of(tid):
        with contextlib.suppress(OSError):
            with open(f"/proc/{tid}/status") as file:
                return int(re.search(r"^Tgid:\s*(\d+)", file.read(), re.MULTILINE)[1])
        return 0

    def _check(self):
        program = self.program
        left_alone = lambda: not program.tracer() and not self.daemon.journals()  # noqa: E731
        began = time.monotonic()
        while program.alive() and not left_alone() and time.monotonic() < began + PATIENCE:
            time.sleep(0.002)
        self.let_go = 1000 * (time.monotonic() - began)
        if program.alive() and not left_alone():
            tracer = program.tracer()
            return self.end("stuck", f"{self.cause}traced by {tracer}, journals {self.daemon.journals()}: "
                            f"{program.stuck_threads()}")
        if not program.goes_on():
            if program.alive():
                return self.end("stuck", f"{self.cause}{program.stuck_threads()}")
            return self.end("lost", f"{self.cause}{program.last_words()}")
        if program.wrong:
            return self.end("wrong", self.cause + " | ".join(program.wrong[:5]))
        if left := [place for place in program.differences() if place not in program.unlike_file]:
            return self.end("wrong", f"{self.cause}bytes of ours are left: {left}")
        return True


class Soak:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.rows = {}  # (program, tier): Row
        self.harms = []
        self.skipped = {}

    def run(self):
        for workload in workloads.ALL:
            if self.options.only and workload.name not in self.options.only:
                continue
            try:
                built = workloads.build(workload, os.path.join(self.options.build, "tests", "soak", "workers"))
            except workloads.Missing as reason:
                self.skipped[workload.name] = str(reason)
                print(f"[skip] {workload.name}: {reason}", flush=True)
                continue
            began = time.monotonic()
            OneProgram(self, built).run()
            print(f"{workload.name}: {time.monotonic() - began:.0f} s", flush=True)

    def judge(self, name, attempt, number):
        row = self.rows.setdefault((name, attempt.plan.tier), Row())
        row.kills += attempt.counted
        row.slowest = max(row.slowest, attempt.let_go)
        if attempt.outcome:
            setattr(row, attempt.outcome, getattr(row, attempt.outcome) + 1)
        if attempt.outcome or self.options.verbose:
            told = f"{name} {number}: {(attempt.outcome or 'well').upper()} ({attempt.plan}): {attempt.cause}"
            if self.options.verbose:
                told += f" [let go after {attempt.let_go:.0f} ms]"
            print(told, flush=True)
            if attempt.outcome not in ("", "untraced"):
                self.harms.append(told)

    def table(self):
        heads = ["program", "tier", "kills", "not traced", "lost before", "lost", "stuck", "wrong", "slowest ms"]
        print("\n" + "{:14} {:10} {:>6} {:>11} {:>11} {:>6} {:>6} {:>6} {:>11}".format(*heads))
        total = Row()
        for (name, tier), row in self.rows.items():
            self._line(name, tier, row)
            total.add(row)
        self._line("all", "", total)
        for name, reason in self.skipped.items():
            print(f"{name}: not run: {reason}")
        return total

    @staticmethod
    def _line(name, tier, row):
        print(f"{name:14} {tier:10} {row.kills:6} {row.untraced:11} {row.before:11} {row.lost:6} {row.stuck:6} "
              f"{row.wrong:6} {row.slowest:11.0f}")


class OneProgram:
    def __init__(self, soak, built):
        self.soak, self.built, self.options = soak, built, soak.options
        self.name = built.workload.name
        self.program = None
        self.starts = 0
        self.globs = None
        self.durations = collections.defaultdict(lambda: {"arming": 0.2, "removing": 0.03})

    def run(self):
        tiers = self.options.tier or list(TIERS)
        counted, number = 0, 0
        try:
            while counted < self.options.kills and number < 2 * self.options.kills + 20:
                dice = random.Random(f"{self.options.seed}/{self.name}/{number}")
                attempt = self._attempt(dice, tiers[number % len(tiers)], number)
                counted += attempt.counted
                self.soak.judge(self.name, attempt, number)
                if attempt.outcome not in ("", "untraced"):
                    self._stop()
                number += 1
        except Failure as failure:
            print(f"{self.name}: given up: {failure}", flush=True)
            self.soak.skipped[self.name] = f"given up: {failure}"
        finally:
            self._stop()

    def _stop(self):
        if self.program:
            self.program.stop()
        self.program = None

    def _attempt(self, dice, tier, number):
        if self.program and self.program.kills >= RENEW_AFTER:
            self._stop()
        if not self.program:
            self.starts += 1
            self.program = Program(self.built, f"{self.soak.directory}/{self.name}-{self.starts}", self.options.keep)
        daemon = Daemon(self.options.probed, self.soak.directory, f"{self.name}-{number}")
        try:
            if self.globs is None:
                self.globs = self._known_globs(daemon)
            attempt = Attempt(self.options, self.program, daemon, self._plan(dice, tier), self.durations[tier])
            attempt.run()
            self.program.kills += attempt.counted
            return attempt
        finally:
            daemon.close()

    def _known_globs(self, daemon):
        """What is there, with as many functions as one daemon is to arm; libc's first."""
        client = Client(daemon.socket)
        known = []
        try:
            for text in ["libc:*", *self.built.workload.globs]:
                with contextlib.suppress(Failure):
                    found = client.call("symbols.functions", pid=self.program.pid, glob=text, limit=MOST_PROBES + 1)
                    if 0 < len(found["functions"]) <= MOST_PROBES:
                        known.append(text)
        finally:
            client.close()
        return known or ["libc:*"]

    def _plan(self, dice, tier):
        chosen = [dice.choice(self.globs)] if dice.random() < 0.5 else self.globs[:1]
        arguments = dice.random() < 0.5
        definitions = [text + (DEREFERENCED if arguments else "") for text in chosen]
        moment = dice.choices(list(MOMENTS), list(MOMENTS.values()))[0]
        return Plan(tier, moment, arguments, definitions, dice.random())


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="of each program, on all tiers together")
    parser.add_argument("--only", action="append", metavar="PROGRAM", choices=workloads.NAMES,
                        help=", ".join(workloads.NAMES))
    parser.add_argument("--tier", action="append", choices=TIERS)
    parser.add_argument("--all", action="store_true", help="kill the tracer and the guard together with the daemon, "
                        "then let `probed --recover` clean up: counted, not judged")
    parser.add_argument("--term", action="store_true", help="end the daemon by SIGTERM: what is lost then isn't lost "
                        "because nobody cleaned up")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), metavar="S")
    parser.add_argument("--build", default=os.path.join(HERE, "..", "..", "build"), metavar="DIRECTORY")
    parser.add_argument("--keep", metavar="DIRECTORY", help="programs run there: daemons' logs, and core dumps of "
                        "what was lost, stay")
    parser.add_argument("--verbose", action="store_true", help="a line for each kill")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    options.probed = os.environ.get("PROBED_BIN", os.path.join(options.build, "daemon", "probed"))
    return options


@contextlib.contextmanager
def working_directory(keep):
    if keep:
        os.makedirs(keep, exist_ok=True)
        yield os.path.abspath(keep)
        return
    directory = tempfile.mkdtemp(prefix="probed-programs-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main():
    options = parse()
    os.environ.pop("PROBED_SOCKET", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"seed: --seed {options.seed}", flush=True)
    with working_directory(options.keep) as directory:
        soak = Soak(options, directory)
        try:
            soak.run()
        finally:
            total = soak.table()
    for harm in soak.harms:
        print(harm[:200])
    print(f"{total.kills} kills, {total.harmed()} programs harmed" + (", not judged" if options.all else ""))
    if not total.kills:
        sys.exit("nothing was killed")
    sys.exit(0 if options.all or total.harmed() * 1000 <= total.kills else 1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
