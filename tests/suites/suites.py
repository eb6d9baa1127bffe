#!/usr/bin/env python3
"""Other programs' own test suites, run twice: alone, and under probes that are followed over fork. Any difference in the
result of any test is harm done by a probe.

tests/suites/run builds what is needed and starts this. Suites: python (its regression tests: libpython3.11-testsuite),
shell (tests/suites/*.sh under every shell there is), sqlite (tests/suites/*.sql, on a database of its own), testfixture
(sqlite's own tests, as user nobody: tests/suites/testfixture DIRECTORY makes them, TESTFIXTURE=DIRECTORY says where).
"""
import argparse
import collections
import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3.11"
LIBC = "/lib/x86_64-linux-gnu/libc.so.6"
PATIENCE = 1800  # seconds for one run of one suite

# The wrappers of system calls that programs use most, and the allocator. What this libc lacks is left out.
WRAPPERS = """
accept accept4 access alarm bind brk chdir chmod chown clock_gettime clock_nanosleep clone close connect dup dup2 dup3
epoll_create1 epoll_ctl epoll_wait eventfd execve execveat _exit faccessat fallocate fchdir fchmod fchmodat fchown
fchownat fcntl fcntl64 fdatasync flock fork fstat fstat64 fstatat64 fsync ftruncate futimens getcwd getdents64 getegid
geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
getrlimit getrusage getsid getsockname getsockopt gettid getuid ioctl kill lchown link linkat listen lseek lseek64 lstat
madvise memfd_create mincore mkdir mkdirat mknod mlock mmap mount mprotect mremap msync munlock munmap nanosleep nice open
open64 openat openat64 pause pidfd_open pipe pipe2 poll posix_spawn ppoll prctl pread pread64 preadv prlimit pselect
pthread_create pthread_join pthread_kill pthread_sigmask pthread_cond_wait pthread_cond_timedwait pthread_mutex_lock
pwrite pwrite64 pwritev raise read readlink readlinkat readv recv recvfrom recvmsg rename renameat rmdir sched_getaffinity
sched_setaffinity sched_yield select sem_timedwait sem_wait send sendfile sendfile64 sendmsg sendto setegid seteuid setgid
setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid shutdown
sigaction sigaltstack sigpending sigprocmask sigsuspend sigtimedwait sigwait sigwaitinfo sleep socket socketpair splice
stat statfs statvfs statx symlink symlinkat sync syscall timer_create timer_settime timerfd_create times truncate umask
uname unlink unlinkat unshare usleep utimensat vfork wait wait3 wait4 waitid waitpid write writev
malloc free calloc realloc
""".split()
NEVER_RETURN = ["_exit"]  # no return probe fits


class Failure(Exception):
    pass


@dataclasses.dataclass
class Suite:
    """run(arguments, prefix) -> {test: outcome}; `prefix` is put before every command."""
    run: collections.abc.Callable
    missing: collections.abc.Callable  # () -> why it can't be run here, or None


def probes():
    exported = subprocess.run(["nm", "-D", "--defined-only", LIBC], capture_output=True, text=True, check=True).stdout
    known = {line.split()[2].split("@")[0] for line in exported.splitlines() if line.split()[1] in "TWti"}
    return [name for name in WRAPPERS if name in known]


# ---- python -------------------------------------------------------------------------------------------------------------


def python_missing():
    if os.path.exists("/usr/lib/python3.11/test/test_threading.py"):
        return None
    return "libpython3.11-testsuite is not installed"


def outcome_of(case):
    for kind in ("failure", "error", "skipped"):
        if case.find(kind) is not None:
            return kind
    return "passed"


def run_python(modules, prefix):
    with tempfile.TemporaryDirectory(prefix="probed-suite-") as directory:
        results = os.path.join(directory, "results.xml")
        # As root some of them would change the machine; -u none leaves out what needs the network or much memory.
        run([*prefix, PYTHON, "-m", "test", "-u", "none", "--tempdir", directory, "--junit-xml", results, *modules], directory)
        cases = xml.etree.ElementTree.parse(results).iter("testcase")
        return {case.get("name"): outcome_of(case) for case in cases}


# ---- shells -------------------------------------------------------------------------------------------------------------


def shells():
    found = [[path] for name in ("dash", "bash", "ksh", "zsh") if (path := shutil.which(name))]
    return found + ([[shutil.which("busybox"), "sh"]] if shutil.which("busybox") else [])


def our_scripts(suffix):
    return sorted(name for name in os.listdir(HERE) if name.endswith(suffix))


def run_shell(scripts, prefix):
    """The outcome of a script is its status and all it writes."""
    outcomes = {}
    for shell in shells():
        for script in scripts or our_scripts(".sh"):
            with tempfile.TemporaryDirectory(prefix="probed-suite-") as directory:
                status, out = run([*prefix, *shell, os.path.join(HERE, script)], directory)
            name = f"{' '.join(os.path.basename(word) for word in shell)} {script}"
            outcomes[name] = f"status {status}: {out.replace(directory, 'DIRECTORY')}"
    return outcomes


# ---- sqlite -------------------------------------------------------------------------------------------------------------


def run_sqlite(scripts, prefix):
    """The outcome of a script is its status and all it answers."""
    outcomes = {}
    for script in scripts or our_scripts(".sql"):
        with tempfile.TemporaryDirectory(prefix="probed-suite-") as directory:
            status, out = run([*prefix, shutil.which("sqlite3"), "database", f".read {os.path.join(HERE, script)}"], directory)
        outcomes[script] = f"status {status}: {out}"
    return outcomes


# ---- sqlite's own -------------------------------------------------------------------------------------------------------

TESTFIXTURE = os.path.join(os.environ.get("TESTFIXTURE", "/nonexistent"), "source")
AS_NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]  # they refuse to be run by root


def run_testfixture(files, prefix):
    """The outcome of a test is what is said of it in its line, or all up to the next test's."""
    outcomes = {}
    for file in files:
        with tempfile.TemporaryDirectory(prefix="probed-suite-") as directory:
            shutil.chown(directory, "nobody", "nogroup")
            script = os.path.join(TESTFIXTURE, "test", file)
            status, out = run([*AS_NOBODY, *prefix, os.path.join(TESTFIXTURE, "testfixture"), script], directory)
        outcomes[f"{file} as a whole"] = f"status {status}"
        for name, said in re.findall(r"^(\S+)\.\.\. ?(.*(?:\n! .*)*)", out, re.MULTILINE):
            outcomes[f"{file} {name}"] = said
    return outcomes


SUITES = {
    "python": Suite(run_python, python_missing),
    "shell": Suite(run_shell, lambda: None if shells() else "no shell is installed"),
    "sqlite": Suite(run_sqlite, lambda: None if shutil.which("sqlite3") else "sqlite3 is not installed"),
    "testfixture": Suite(run_testfixture, lambda: None if os.path.exists(os.path.join(TESTFIXTURE, "testfixture"))
                         else "TESTFIXTURE doesn't say where tests/suites/testfixture has made it"),
}
PYTHON_MODULES = ["test_threading", "test_signal", "test_subprocess", "test_os", "test_eintr", "test_faulthandler",
                  "test_fork1", "test_wait3", "test_wait4", "test_threadsignals", "test_queue"]
QUICK = {"python": ["test_thread", "test_popen", "test_threading_local", "test_pty"], "shell": ["jobs.sh", "traps.sh"], "sqlite": []}
FULL = {"python": PYTHON_MODULES + QUICK["python"], "shell": [], "sqlite": [],
        # Without those that ask how fast something is (like, ...).
        "testfixture": [name + ".test" for name in """
            select1 select2 select3 insert insert2 trigger1 trigger2 update delete join join2 index index2 rollback 
            json101 thread1 thread2 lock vacuum date subquery view wal2 shared exclusive collate1 expr
            fkey1 in null quote table temptable types unique without_rowid1 main memdb misc1 blob attach
            auth cast check coalesce conflict count ctime default descidx1 distinct enc
        """.split()]}

# ---- running ------------------------------------------------------------------------------------------------------------


def run(argv, directory):
    """(exit status, standard output)"""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(argv, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                   text=True, errors="replace", start_new_session=True)
        try:
            out = process.communicate(timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise Failure(f"{argv}: not done after {PATIENCE} s") from None
        errors.seek(0)
        return end_of_traced(errors.read()) if "trace" in argv else process.returncode, out


hits = collections.Counter()


def end_of_traced(errors):
    """How it ended, by what `probectl trace` says (its own status is another matter); its hits are counted."""
    counts = re.search(r"^hits=(\d+) delivered=\d+ missed=(\d+)$", errors, re.MULTILINE)
    ended = re.search(r"^probectl: PID \d+ ended \((exit code|killed by signal) (\d+)", errors, re.MULTILINE)
    if not counts or not ended:
        raise Failure(f"nothing was traced: {errors.strip()[-2000:]}")
    hits["hits"] += int(counts[1])
    return int(ended[2]) * (1 if ended[1] == "exit code" else -1)


def trace_prefix(probectl, options):
    prefix = [probectl, "trace", "-o", "/dev/null"] + ([] if options.no_follow else ["--follow-fork"])
    for name in options.probe or probes():
        if options.returns and ":" not in name and name not in NEVER_RETURN:
            prefix += ["-e", f"r:{name} libc:{name}"]
        else:
            prefix += ["-e", name if ":" in name else f"libc:{name}"]
    return [*prefix, "--"]


def compare(alone, traced):
    return [f"{test}: {alone.get(test, 'not run')} alone, {traced.get(test, 'not run')} under probes"
            for test in sorted(alone.keys() | traced.keys()) if alone.get(test) != traced.get(test)]


def figures(outcomes):
    counts = collections.Counter(outcome if len(outcome) < 10 else "done" for outcome in outcomes.values())
    return ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts))


def check_suite(name, arguments, prefix):
    """What differs."""
    suite = SUITES[name]
    began = time.monotonic()
    alone = suite.run(arguments, [])
    halfway = time.monotonic()
    traced = suite.run(arguments, prefix)
    print(f"{name}: {len(alone)} tests; alone: {figures(alone)} in {halfway - began:.0f} s; under probes: "
          f"{figures(traced)} in {time.monotonic() - halfway:.0f} s, {hits['hits']} hits", flush=True)
    return compare(alone, traced)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small part of each, for CI")
    parser.add_argument("--only", metavar="SUITE", choices=SUITES)
    parser.add_argument("--returns", action="store_true", help="probe the returns of libc's wrappers")
    parser.add_argument("--no-follow", action="store_true", help="not over fork: children are cleaned of all probes")
    parser.add_argument("--probe", metavar="PROBE", action="append", help="this one instead of libc's wrappers")
    parser.add_argument("tests", nargs="*", help="with --only: these tests of it")
    options = parser.parse_args()
    if "PROBECTL_BIN" not in os.environ:
        raise Failure("PROBECTL_BIN does not say where probectl is; start tests/suites/run instead")
    prefix = trace_prefix(os.environ["PROBECTL_BIN"], options)
    os.environ.setdefault("PROBED_SOCKET", "/nonexistent/probed.sock")  # each trace starts a daemon of its own
    differences = []
    chosen = QUICK if options.quick else FULL
    for name in [options.only] if options.only else chosen:
        if reason := SUITES[name].missing():
            print(f"[skip] {name}: {reason}")
            continue
        arguments = options.tests or chosen[name]
        differences += check_suite(name, arguments, prefix)
    for difference in differences:
        print(f"DIFFERENT {difference}")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            main()
        except Failure as failure:
            sys.exit(f"suites: {failure}")
