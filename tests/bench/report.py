"""Numbers into a table and into JSON."""
import statistics

UNPROBED, BARE = "unprobed", "bare"
# The kernel's uprobe on the same function: it is ten times cheaper where the kernel emulates the instruction.
KERNEL = {"bench_nop": "kernel-nop5", "bench_push": "kernel-push", "bench_copy": "kernel-copy"}


def spread(values):
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "q1": quartiles[0], "q3": quartiles[2]}


def ratio(samples, others, what):
    """The median of the ratios of what was measured in the same round: the machine's mood cancels out."""
    rounds = [r for r in samples if r in others]
    if not rounds:
        return None
    return statistics.median(getattr(samples[r], what) / getattr(others[r], what) for r in rounds)


def row_result(row, group, samples, peers, info):
    """samples: {round: Sample}; peers: {"bare": the bare loop's samples, ...}."""
    runs = list(samples.values())
    result = {
        "key": row.key, "group": group, "label": row.label, "function": row.function, "threads": row.threads,
        "pinned": row.pinned, "calls": runs[0].calls, "rounds": len(runs),
        "ns": spread([s.ns for s in runs]), "cpu_ns": spread([s.cpu_ns for s in runs]),
        "stops": statistics.median(s.stops for s in runs), **info,
    }
    for name, other in peers.items():
        result[f"ratio_{name}"] = ratio(samples, other, "ns")
        result[f"cpu_ratio_{name}"] = ratio(samples, other, "cpu_ns")
    return result


def number(value):
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def times(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


COLUMNS = ("", "median", "min", "max", "CPU", "stops", "x bare", "CPU", "x kernel", "CPU")
WIDTHS = (44, 10, 10, 10, 10, 6, 8, 8, 9, 8)


def line(cells):
    first, *rest = cells
    return first.ljust(WIDTHS[0]) + "".join(cell.rjust(width) for cell, width in zip(rest, WIDTHS[1:]))


def row_line(result):
    ns = result["ns"]
    return line(("  " + result["label"], number(ns["median"]), number(ns["min"]), number(ns["max"]),
                 number(result["cpu_ns"]["median"]), f"{result['stops']:.2f}", times(result["ratio_bare"]),
                 times(result["cpu_ratio_bare"]), times(result["ratio_kernel"]), times(result["cpu_ratio_kernel"])))


LEGEND = """\
ns of one hit: wall-clock time of the target's loop by the number of hits of all threads; median, min and max of {rounds} runs, in
turns. CPU: nanoseconds of CPU time of target and tracer together (with a client: JSON included), median. stops: times that
the target was stopped and woken, a hit. x bare, x kernel: ratio to the bare loop on the target's CPU and to the kernel's uprobe on the
same function, by wall-clock and by CPU time, medians of the ratios within a round."""


def table(results, skipped, groups, rounds):
    lines = [LEGEND.format(rounds=rounds), "", line(COLUMNS)]
    for group, rows in groups.items():
        shown = [row.key for row in rows if row.key in results or row.key in skipped]
        if not shown:
            continue
        lines.append(group)
        for row in (row for row in rows if row.key in shown):
            lines.append(row_line(results[row.key]) if row.key in results else f"  {row.label}: skipped: {skipped[row.key]}")
    return "\n".join(lines)


def redis_table(results, skipped, rows):
    lines = ["", "redis-benchmark SET, 4 clients, server on one CPU, load on the other: requests a second",
             line(("", "median", "min", "max", "", "", "of unprobed", "us/hit", "", ""))]
    for key, result in results.items():
        rate = result["per_second"]
        lines.append(line(("  " + rows[key].label, number(rate["median"]), number(rate["min"]), number(rate["max"]), "", "",
                           times(result.get("ratio_unprobed")), times(result.get("us_per_hit")), "", "")))
    lines += [f"  {rows[key].label}: skipped: {reason}" for key, reason in skipped.items()]
    return "\n".join(lines)


def redis_results(rates, rows):
    results = {}
    for key, values in rates.items():
        if not isinstance(values, list):
            continue
        results[key] = {"key": key, "per_second": spread(values)}
        plain = rates.get(rows[key].unprobed)
        if isinstance(plain, list) and plain:
            pairs = list(zip(values, plain))
            results[key]["ratio_unprobed"] = statistics.median(v / p for v, p in pairs)
            results[key]["us_per_hit"] = statistics.median(1e6 / v - 1e6 / p for v, p in pairs)
    return results


def control_line(result):
    return (f"\nA command to the tracer (probe.enable, probe.disable) while hits stream: median {result['median']:.0f} us, "
            f"worst of {result['calls']} {result['max']:.0f} us")


def pause_table(results):
    """results: pause.measure()."""
    operations = list(next(iter(results.values())))
    lines = ["", "The longest that any thread stands still, ms: median and worst; other load on the machine isn't counted",
             " " * 20 + "".join(name.rjust(18) for name in operations)]
    for threads, of in results.items():
        cells = [f"{statistics.median(of[name]['pause']):.2f}/{max(of[name]['pause']):.2f}" for name in operations]
        lines.append(f"  {threads:,} thread{'s' * (threads > 1)}".ljust(20) + "".join(cell.rjust(18) for cell in cells))
    return "\n".join(lines)


def busy_table(results, loops, goal):
    """results: busy.measure()."""
    operations = list(next(iter(next(iter(results.values())).values())))
    lines = ["", f"The longest that a thread stands still beside {loops} busy loops, half of them in the tracer's session, ms: median and worst;",
             f"goal: {goal}. Then the client's wait for its answer, ms, median",
             " " * 30 + "".join(name.rjust(18) for name in operations) + "".join(f"{name}: wait".rjust(18) for name in operations)]
    for daemon, cases in results.items():
        for case, of in cases.items():
            cells = [f"{statistics.median(of[name]['pause']):.2f}/{max(of[name]['pause']):.2f}" for name in operations]
            cells += [f"{statistics.median(of[name]['wait']):.0f}" for name in operations]
            lines.append(f"  {daemon}, {case}".ljust(30) + "".join(cell.rjust(18) for cell in cells))
    return "\n".join(lines)


def working_table(results, goal, goal_ms):
    """results: working.measure()."""
    count = next(iter(results.values()))["probes"]["median"]
    lines = ["", f"A program that calls the C library all the time, while all its {count:,.0f} functions are probed: work of half a second, as a",
             f"ratio to its own rate (goal: {goal}), and the longest that it stood still, ms (goal: {goal_ms}); median, min, max",
             " " * 24 + "".join(f"{name:>24}" for name in ("arming", "traced", "removing", "gap", "gap, removing", "until armed, s"))]
    for daemon, of in results.items():
        cells = [f"{of[what]['median']:.2f} {of[what]['min']:.2f} {of[what]['max']:.2f}"
                 for what in ("arming", "traced", "removing", "gap_ms", "gap_removing_ms", "armed_s")]
        lines.append(f"  {daemon}".ljust(24) + "".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)


def was_busy(results):
    """Whether the pinned pair had its CPU for itself: then its CPU time is its wall-clock time."""
    bare = results.get(BARE)
    return bare is not None and bare["cpu_ns"]["median"] < 0.9 * bare["ns"]["median"]


BUSY = """
The machine was busy: a good part of the wall-clock times is waiting for a CPU. Compare CPU columns and minima."""


def detour_table(figures):
    lines = ["", "Inside the process (bench-detour): ns that a hit adds to a call; median, least, ratio of medians to the hand-written detour"]
    return "\n".join(lines + [f"  {f['name']:42}{f['ns']:10.1f}{f['least']:10.1f}{f['ratio']:10.2f}" for f in figures])


def stream_table(result, goal):
    lines = ["", "Ring to JSON client: one thread calls at a rate of its own; goal: "
             f"{goal:,} events a second, none missed", line(("", "calls/s", "hits", "delivered", "missed", "", "daemon", "reader", "", ""))]
    for name, flow in [("paced", f) for f in result["rates"]] + [("at full speed", result["flood"])]:
        lines.append(line(("  " + name, number(flow["rate"]), number(flow["hits"]), number(flow["delivered"]), number(flow["missed"]),
                           "ns:", number(flow["daemon_ns"]), number(flow["reader_ns"]), "", "")))
    best = max((f["rate"] for f in result["rates"] if f["missed"] == 0), default=0)
    return "\n".join(lines + [f"  highest without a loss: {best:,.0f} events a second; ns: CPU time for each event delivered"])


def many_table(result, probes):
    lines = ["", f"{probes:,} probes by one glob: seconds; memory; median, min, max"]
    labels = {"attach": "attach", "armed": "armed (probe.add answers)", "optimised": "all are jumps", "removed": "removed (probe.remove answers)",
              "detach": "detach", "pause_ms": "longest pause of a thread by the optimiser so far, ms", "bytes": "memory of ours in the target, MiB"}
    for name, label in labels.items():
        scale = 1 << 20 if name == "bytes" else 1
        lines.append("  " + label.ljust(58) + "".join(f"{result[name][what] / scale:10.3f}" for what in ("median", "min", "max")))
    return "\n".join(lines)


def arming_table(results, cases):
    lines = ["", "From `probectl trace` to `armed` (`functions`: to the last one listed), with a private daemon that has read nothing yet:",
             "ms; median, min, max, goal"]
    for name, (label, definition, goal) in cases.items():
        of = results[name]
        if isinstance(of, str):
            lines.append(f"  {label:44}{of}")
            continue
        times = "".join(f"{of[what] * 1e3:10.0f}" for what in ("median", "min", "max"))
        goal_ms = f"{goal * 1e3:10.0f}" if goal else " " * 9 + "-"
        lines.append(f"  {label:44}{times}{goal_ms}   {of['probes']:,}: {definition}")
    return "\n".join(lines)


def idle_table(results):
    states = list(next(iter(results.values())))
    lines = ["", "A traced process that hits nothing: microseconds", "  " + " " * 20 + "".join(s.rjust(20) for s in states)]
    for name, of in results.items():
        lines.append("  " + name.ljust(20) + "".join(f"{of[s] / 1e3:.1f} (x{of[s] / of[states[0]]:.2f})".rjust(20) for s in states))
    return "\n".join(lines)
