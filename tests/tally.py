#!/usr/bin/env python3
"""tally.py [--also-failed N] [--not-run WHY] [--save FILE] TESTLOG: counts what a meson test run did.

TESTLOG is meson-logs/testlog.json. A doctest program counts by its test cases ("[doctest] test cases: 3 | ..."), any
other test counts as one. Test cases that printed "[skip] NAME: REASON" count as skipped, and so does exit status 77.
Prints the skipped with their reasons, the failed with the end of their output, and at last "N passed, N failed" (and
", N skipped"). Exit status 1 when anything failed or nothing ran.
--also-failed N adds failures found elsewhere; --not-run WHY says instead that there is no log, and why: one failure;
--save FILE appends "PASSED FAILED SKIPPED" there, and "failed NAME" for each test that did; the last line is then the
caller's to print, and ours begins with "this step:".
"""
import argparse
import json
import re
import sys

CASES = re.compile(r"\[doctest\] test cases:\s*\d+\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed")
SKIP = re.compile(r"^\[skip\] (.*?): (.*)$", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PASSED_RESULTS = {"OK", "EXPECTEDFAIL"}
CASE = re.compile(r"^TEST CASE:\s*(.*)$", re.MULTILINE)
FAILED_CHECK = re.compile(r"^(\S+:\d+: (?:FATAL )?ERROR: .*(?:\n  values: .*)?)", re.MULTILINE)
CHECKS_NAMED = 3
TAIL_LINES = 60


def count(test, output):
    """(passed, failed, skipped) of one meson test, and its skip reasons."""
    reasons = SKIP.findall(output)
    cases = CASES.findall(output)
    if test["result"] == "SKIP":
        lines = output.strip().splitlines() or ["(it gave no reason)"]
        return (0, 0, 1), reasons or [(test["name"], lines[-1])]
    succeeded = test["result"] in PASSED_RESULTS
    if not cases:
        return ((1, 0, 0) if succeeded else (0, 1, 0)), reasons
    passed, failed = sum(int(c[0]) for c in cases), sum(int(c[1]) for c in cases)
    skipped = min(passed, len({name for name, _ in reasons}))
    if not succeeded and failed == 0:
        failed = 1  # it crashed, hung, or a sanitizer spoke up after the last case
    return (passed - skipped, failed, skipped), reasons


def name_failure(test, output):
    """One line: the test and, of a doctest program, the cases that failed with their first failed checks."""
    named = []
    pieces = CASE.split(output)  # what comes before, then each case's name and what it printed
    for case, printed in zip(pieces[1::2], pieces[2::2]):
        checks = [" ".join(check.split()) for check in FAILED_CHECK.findall(printed)]
        if checks:
            more = f" and {len(checks) - CHECKS_NAMED} more" if len(checks) > CHECKS_NAMED else ""
            named.append(f"{case} [{'; '.join(checks[:CHECKS_NAMED])}{more}]")
    return f"{test['name']} ({test['result']})" + (": " + "; ".join(named) if named else "")


def report_failure(test, output):
    print(f"\nFAILED: {test['name']} ({test['result']}, {test.get('duration', 0):.1f} s)")
    for line in output.strip().splitlines()[-TAIL_LINES:]:
        print("  " + line)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return [json.loads(line) for line in file if line.strip()]


def tally(path):
    """The counts of all tests, and the names of those that failed."""
    total, names = [0, 0, 0], []
    for test in read(path):
        output = COLOUR.sub("", (test.get("stdout") or "") + "\n" + (test.get("stderr") or ""))
        counts, reasons = count(test, output)
        total = [a + b for a, b in zip(total, counts)]
        for name, reason in reasons:
            print(f"skipped: {name}: {reason}")
        if counts[1]:
            report_failure(test, output)
            names.append(name_failure(test, output))
    return total, names


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--also-failed", type=int, default=0)
    parser.add_argument("--not-run")
    parser.add_argument("--save")
    parser.add_argument("testlog")
    options = parser.parse_args()
    why, names = options.not_run, []
    if not why:
        try:
            (passed, failed, skipped), names = tally(options.testlog)
        except OSError:
            why = f"meson left no results in {options.testlog}"
    if why:
        print(f"No test ran: {why}.")
        passed, failed, skipped = 0, 1, 0
    failed += options.also_failed
    line = f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")
    if options.save:
        with open(options.save, "a", encoding="utf-8") as file:
            print(passed, failed, skipped, file=file)
            for name in names:
                print("failed", name, file=file)
        line = "this step: " + line
    print(line)
    sys.exit(1 if failed or not passed + skipped else 0)


main()
