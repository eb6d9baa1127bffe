"""The programs that tests/soak/programs traces: how each is built and started, and what is probed in it.

Each prints "beat N" and, when it has computed something wrong, "WRONG ..." (workers/threads.c says how).
"""
import dataclasses
import glob
import os
import platform
import shutil
import subprocess

WORKERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workers")


class Missing(Exception):
    """This machine can't run that program; the text says why."""


@dataclasses.dataclass
class Workload:
    """source: a file of WORKERS. build: commands; {source}, {out} and {folder} of {out} are filled in.
    needs: the programs it is built and run with. argv: also {work}, a directory of its own, and what `needs` are here.
    globs: what is probed besides libc; where there is no such module the glob is left out.
    process: of which process of it; a function of the pid that was started."""
    name: str
    source: str
    argv: list
    needs: list = dataclasses.field(default_factory=list)
    build: list = dataclasses.field(default_factory=list)
    globs: list = dataclasses.field(default_factory=list)
    environment: dict = dataclasses.field(default_factory=dict)
    preload: str = ""
    process: object = None
    noise: str = ""  # what it says that means nothing: a regular expression


def _found(name):
    """Debian's own before what somebody has put in front of it in PATH: that is often a script."""
    for folder in ("/usr/bin", *os.environ.get("PATH", "").split(":")):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise Missing(f"{name} is not installed")


def _preloaded(name):
    found = sorted(glob.glob(f"/usr/lib/*/{name}") + glob.glob(f"/usr/lib/{name}"))
    if not found:
        raise Missing(f"{name} is not installed")
    return found[0]


def _command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _stat(pid, index):
    """Of /proc/PID/stat, behind the name; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[index])
    except OSError:
        return 0


def _cpu_time(pid):
    """Clock ticks in user mode."""
    return _stat(pid, 11)


def _parent(pid):
    return _stat(pid, 1)


def _below(pid, ancestor):
    while pid > 1:
        if pid == ancestor:
            return True
        pid = _parent(pid)
    return False


def _busiest_renderer(browser):
    """The page's: others have nothing to do."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    renderers = [pid for pid in pids if b"--type=renderer" in _command_of(pid) and _below(pid, browser)]
    return max(renderers, key=_cpu_time, default=0)


_CHROMIUM = ["{chromium}", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--user-data-dir={work}/profile", "--enable-logging=stderr", "file://{source}"]
_NOISE = r"(ERROR|WARNING|INFO):|unexpected operator"
_C = ["{cc}", "-O2", "-g", "-D_GNU_SOURCE", "-pthread"]


def _java(name, collector):
    options = ["-Xmx64m", f"-XX:+Use{collector}GC", "-XX:-UsePerfData", "-cp", "{folder}"]
    return Workload(name, "Worker.java", ["{java}", *options, "Worker"], ["java", "javac"],
                    [["{javac}", "-d", "{folder}", "{source}"]],
                    ["libjvm:*Thread*", "libjvm:*Safepoint*", "libjvm:*[Mm]utex*", "libjvm:os::*", "libjvm:G1*"])


ALL = [
    Workload("threads", "threads.c", ["{out}"], ["cc"], [[*_C, "-o", "{out}", "{source}"]], ["threads:*"]),
    Workload("jemalloc", "threads.c", ["{out}"], ["cc"], [[*_C, "-o", "{out}", "{source}"]], ["libjemalloc:*"],
             preload="libjemalloc.so.2"),
    # Not where address space layout randomisation uses more bits than GCC 12's runtime knows: it starts without any.
    Workload("tsan", "threads.c", ["{setarch}", "-R", "{out}"], ["cc", "setarch"],
             [[*_C, "-fsanitize=thread", "-o", "{out}", "{source}"]], ["libtsan:*", "tsan:*"]),
    Workload("go", "cgo.go", ["{out}"], ["go", "cc"], [["{go}", "build", "-o", "{out}", "{source}"]], ["go:*"],
             {"GO111MODULE": "off", "GOFLAGS": "", "GOPROXY": "off", "CGO_ENABLED": "1", "GOCACHE": "{folder}/gocache",
              "GOPATH": "{folder}/gopath"}),
    Workload("python3", "worker.py", ["{python3}", "{source}"], ["python3"], globs=["python3*:*"]),
    _java("java-serial", "Serial"),
    _java("java-parallel", "Parallel"),
    _java("java-g1", "G1"),
    Workload("node", "worker.js", ["{node}", "{source}"], ["node"],
             globs=["node:uv_*", "node:*Heap*", "node:*Isolate*", "libuv:*", "libnode:*Heap*"]),
    Workload("sbcl", "worker.lisp", ["{sbcl}", "--script", "{source}"], ["sbcl"], globs=["sbcl:*"]),
    Workload("mono", "Worker.cs", ["{mono}", "{out}"], ["mono", "mcs"],
             [["{mcs}", "-optimize", "-out:{out}", "{source}"]], ["mono-sgen:*"]),
    Workload("qemu", "threads.c", ["{qemu-x86_64}", "{out}"], ["cc", "qemu-x86_64"],
             [[*_C, "-static", "-o", "{out}", "{source}"]], ["qemu-x86_64:*", "libglib-2.0:*"]),
    Workload("racket", "worker.rkt", ["{racket}", "{source}"], ["racket"], globs=["racket:*"]),
    Workload("chromium", "worker.html", _CHROMIUM, ["chromium"], globs=["libglib-2.0:*", "libnspr4:*", "chromium:*"],
             noise=_NOISE),
    Workload("chromium-page", "worker.html", _CHROMIUM, ["chromium"], globs=["libglib-2.0:*", "chromium:*"],
             process=_busiest_renderer, noise=_NOISE),
]
NAMES = [workload.name for workload in ALL]


@dataclasses.dataclass
class Built:
    workload: Workload
    words: dict

    def fill(self, texts, **more):
        return [text.format(**self.words, **more) for text in texts]

    def argv(self, work):
        return self.fill(self.workload.argv, work=work)

    def environment(self, **more):
        own = {name: value.format(**self.words) for name, value in self.workload.environment.items()}
        if self.workload.preload:
            own["LD_PRELOAD"] = _preloaded(self.workload.preload)
        return {**os.environ, **own, **more}


def build(workload, directory):
    """Ready to be started; what is older than its source is built. Missing when it can't be."""
    if workload.name == "qemu" and platform.machine() != "x86_64":
        raise Missing("no compiler for x86-64 programs is looked for on another machine")
    if workload.preload:
        _preloaded(workload.preload)
    folder = os.path.join(directory, workload.name)
    words = {need: _found(need) for need in workload.needs}
    source = os.path.join(WORKERS, workload.source)
    words |= {"source": source, "out": os.path.join(folder, workload.name), "folder": folder}
    built = Built(workload, words)
    stamp = os.path.join(folder, "built")
    newest = max(os.path.getmtime(source), os.path.getmtime(os.path.abspath(__file__)))
    if os.path.exists(stamp) and os.path.getmtime(stamp) > newest:
        return built
    os.makedirs(folder, exist_ok=True)
    environment = {name: value for name, value in built.environment().items() if name != "LD_PRELOAD"}
    for command in workload.build:
        done = subprocess.run(built.fill(command), capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise Missing(f"it can't be built: {(done.stderr or done.stdout).strip()[-500:]}")
    with open(stamp, "w"):
        pass
    return built
