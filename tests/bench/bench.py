#!/usr/bin/env python3
"""The cost of a hit, ours beside its peers', in one run. tests/bench/run builds what is needed and starts this.

Every round measures every row once, in an order of its own, so that a busy machine disturbs all of them alike. Each
measurement has a fresh target, which times its own loop; the number of hits that the tracer has seen must be the number
of calls, else the benchmark fails.
"""
import argparse
import contextlib
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import arming
import busy
import idle
import many
import pause
import redis_load
import report
import stream
import working
from daemon import Probe, daemon
from kernel_uprobes import uprobes
from processes import Failure, Unavailable, target
from rows import GROUPS, NOP

QUICK_DIVISOR = 20
WARM_UP = 10  # a tenth of the calls first, not measured
CONTROL_CALLS = 300
PAUSE_ROUNDS = 10
OTHER_ROUNDS = 3


class Bench:
    """What rows are measured with."""

    def __init__(self, build, cpus):
        self.build = build
        self.cpu = cpus[-1]
        self.other_cpu = cpus[0] if len(cpus) > 1 else None
        self.daemon = self.baseline = self.uprobes = None
        self.no_uprobes = ""

    def program(self, name):
        return self.built(os.path.join("tests", "bench", name))

    def built(self, name):
        path = os.path.abspath(os.path.join(self.build, name))
        if not os.path.exists(path):
            raise Failure(f"{path} is missing; tests/bench/run builds it")
        return path


def measure_row(bench, row, calls):
    with tempfile.TemporaryDirectory(prefix="probed-bench-") as directory:
        prefix = row.prefix(bench, directory) if row.prefix else ()
        cpu = -2 if row.apart else bench.cpu if row.pinned else -1
        with target(bench.program(row.program), row.function, row.threads, cpu, prefix) as measured:
            with row.arm(bench, measured) as meter:
                measured.go(max(calls // WARM_UP, 1), meter.pids, row.how)
                sample = measured.go(calls, meter.pids, row.how)
            if not measured.finish():
                raise Failure("the target was killed")
    return sample, meter.info


def measure_rows(bench, wanted, rounds, divisor):
    """({key: {round: Sample}}, {key: what else is known}, {key: reason})"""
    samples, infos, skipped = {}, {}, {}
    for number in range(rounds):
        order = [row for row in wanted if row.key not in skipped and number < row.rounds]
        random.shuffle(order)
        for row in order:
            progress(f"round {number + 1} of {rounds}: {row.key}")
            try:
                sample, info = measure_row(bench, row, max(row.calls // divisor, 1))
            except Unavailable as reason:
                skipped[row.key] = str(reason)
                continue
            except Failure as failure:
                raise Failure(f"{row.key}: {failure}") from failure
            samples.setdefault(row.key, {})[number] = sample
            for name, value in info.items():
                infos.setdefault(row.key, {}).setdefault(name, 0)
                infos[row.key][name] += value
    progress("")
    return samples, infos, skipped


def measure_control(bench, calls):
    """Microseconds of a command to the tracer while hits stream from the same target."""
    progress("control calls")
    times = []
    with target(bench.program("bench-target"), NOP, 1, bench.cpu) as busy, bench.daemon.client() as client:
        # The probe that is switched stands behind the ret: it is never hit.
        idle = Probe(client, busy.pid, f"p:bench/idle {busy.address + 5:#x}", {"disabled": True})
        streaming = Probe(client, busy.pid, f"p:bench/stream {busy.address:#x}", {"stream": True})
        busy.process.stdin.write("go 1000000000\n")
        busy.process.stdin.flush()
        while client.events == 0:
            time.sleep(0.01)
        for i in range(calls):
            began = time.monotonic()
            client.call("probe.disable" if i % 2 else "probe.enable", ids=[idle.id])
            times.append((time.monotonic() - began) * 1e6)
        client.call("probe.disable", ids=[streaming.id])
        hits = streaming.account()[0]
    progress("")
    return {"calls": calls, "median": statistics.median(times), "min": min(times), "max": max(times), "hits_meanwhile": hits}


def measure_detour(bench, quick):
    """What bench-detour prints."""
    progress("bench-detour")
    argv = [bench.program("bench-detour"), "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    progress("")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def results_of(samples, infos):
    def peers(row):
        keys = {"unprobed": report.UNPROBED, "bare": report.BARE, "kernel": report.KERNEL[row.function]}
        return {name: samples.get(key, {}) for name, key in keys.items()}

    return {row.key: report.row_result(row, group, samples[row.key], peers(row), infos.get(row.key, {}))
            for group, rows in GROUPS.items() for row in rows if row.key in samples}


def machine():
    with open("/proc/cpuinfo") as file:
        model = next((l.split(":")[1].strip() for l in file if l.startswith("model name")), platform.machine())
    return {"cpu": model, "cpus": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()}


def urgent():
    """The highest priority for us and all we start: nice, and the scheduler's autogroup of a session of our own."""
    with contextlib.suppress(OSError):
        os.setsid()
    os.nice(-20)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write("-20")


OTHERS = {"control", "pause", "detour", "stream", "many", "arming", "idle", "busy", "working"}


def wanted_rows(only):
    keys = {row.key for rows in GROUPS.values() for row in rows} | set(redis_load.ROWS) | OTHERS
    chosen = {key for key in keys if not only or any(key == word or key.startswith(word + "-") for word in only)}
    unknown = [word for word in only if not any(key == word or key.startswith(word + "-") for key in keys)]
    if unknown:
        sys.exit(f"bench: no such row: {', '.join(unknown)}; there are {', '.join(sorted(keys))}")
    return chosen


def parse():
    parser = argparse.ArgumentParser(prog="tests/bench/run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round: only shows that everything runs")
    parser.add_argument("--rounds", type=int, default=9, help="times that each row is measured (9)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there too; -: to stdout, and no table")
    parser.add_argument("--only", default="", metavar="ROW[,ROW]...", help="only these, and those whose names they begin: ours,bare")
    parser.add_argument("--baseline", metavar="PROBED", help="another build of the daemon, to measure beside this one")
    parser.add_argument("--urgent", action="store_true", help="take the highest priority (root): for busy machines")
    parser.add_argument("--build", default="build", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure_all(bench, options, stack):
    chosen = wanted_rows([word for word in options.only.split(",") if word])
    bench.daemon = stack.enter_context(daemon(os.path.join(options.build, "daemon", "probed")))
    if options.baseline:
        bench.baseline = stack.enter_context(daemon(options.baseline))
    try:
        bench.uprobes = stack.enter_context(uprobes())
    except Unavailable as reason:
        bench.no_uprobes = str(reason)
    divisor, rounds = (QUICK_DIVISOR, 1) if options.quick else (1, options.rounds)
    rows = [row for group in GROUPS.values() for row in group if row.key in chosen]
    samples, infos, skipped = measure_rows(bench, rows, rounds, divisor)
    redis_keys = [key for key in redis_load.ROWS if key in chosen]
    rates = redis_load.measure(bench, redis_keys, divisor, rounds) if redis_keys else {}
    few = 1 if options.quick else OTHER_ROUNDS
    others = {
        "control": lambda: measure_control(bench, CONTROL_CALLS // divisor),
        "pause": lambda: pause.measure(bench, max(PAUSE_ROUNDS // divisor, 1)),
        "detour": lambda: measure_detour(bench, options.quick),
        "stream": lambda: stream.measure(bench, divisor),
        "many": lambda: many.measure(bench, few),
        "arming": lambda: arming.measure(bench, few),
        "idle": lambda: idle.measure(bench, few, divisor),
        "busy": lambda: busy.measure(bench, few),
        "working": lambda: working.measure(bench, few),
    }
    measured = {key: measure() for key, measure in others.items() if key in chosen}
    skipped |= {key: reason for key, reason in rates.items() if isinstance(reason, str)}
    return {"machine": machine(), "rounds": rounds, "rows": results_of(samples, infos),
            "redis": report.redis_results(rates, redis_load.ROWS), "skipped": skipped, **measured}


def show(results):
    skipped = results["skipped"]
    print(report.table(results["rows"], skipped, GROUPS, results["rounds"]))
    redis_skipped = {key: skipped[key] for key in redis_load.ROWS if key in skipped}
    if results["redis"] or redis_skipped:
        print(report.redis_table(results["redis"], redis_skipped, redis_load.ROWS))
    tables = {
        "detour": report.detour_table,
        "stream": lambda result: report.stream_table(result, stream.GOAL),
        "many": lambda result: report.many_table(result, many.PROBES),
        "arming": lambda result: report.arming_table(result, arming.CASES),
        "idle": report.idle_table,
        "control": report.control_line,
        "pause": report.pause_table,
        "busy": lambda result: report.busy_table(result, busy.LOOPS, busy.GOAL_MS),
        "working": lambda result: report.working_table(result, working.GOAL_RATIO, working.GOAL_GAP_MS),
    }
    for key, text in tables.items():
        if key in results:
            print(text(results[key]))
    if report.was_busy(results["rows"]):
        print(report.BUSY)


def write_json(path, results):
    text = json.dumps(results, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        with open(path, "w") as file:
            file.write(text)


def main():
    options = parse()
    if options.urgent:
        urgent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    bench = Bench(options.build, sorted(os.sched_getaffinity(0)))
    if bench.other_cpu is not None:
        os.sched_setaffinity(0, {bench.other_cpu})  # where the reader of our rows' events runs; children run anywhere
    try:
        with contextlib.ExitStack() as stack:
            results = measure_all(bench, options, stack)
    except Failure as failure:
        progress("")
        sys.exit(f"bench: {failure}")
    if options.json != "-":
        show(results)
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
