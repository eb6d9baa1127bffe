#!/usr/bin/env python3
"""What tests/arm64/run needs to know of the tests of a build directory.

tests.py targets BUILD [--only FOLDERS] [--test NAMES]                    prints what must be built for them
tests.py pack    BUILD [--only FOLDERS] [--test NAMES] --patience N ROOT  copies them and what they read below ROOT, each
                                                                          to its own path, and writes ROOT/tests, which
                                                                          runs them all
tests.py log     BUILD [--only FOLDERS] [--test NAMES] CONSOLE            prints what /tests printed to CONSOLE, as meson
                                                                          would have written it to testlog.json
"""
import argparse
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

# What tests read besides the programs they depend on.
SOURCES = ["README.md", "meson.build", "arch", "client", "daemon", "packaging", "proto", "tests"]
# These need programs of a whole Debian, which the guest doesn't have, or measure times, which say nothing there.
NOT_IN_GUEST = ("tests/suites/", "tests/bench/", "tests/fuzz/")

# Beside a program: where its separate debug information is (tests/unit/symbols/make_variant.sh).
DEBUG_FOLDERS = (".debug", "debugroot")


def introspect(build, what):
    return json.loads(subprocess.check_output(["meson", "introspect", build, "--" + what]))


def chosen(options):
    wanted = [name for name in options.test.split(",") if name]
    folders = tuple(f"{options.build}/tests/{folder}/" for folder in options.only.split(",") if folder)
    for test in introspect(options.build, "tests"):
        program = test["cmd"][0]
        if any(f"/{folder}" in program for folder in NOT_IN_GUEST):
            continue
        if test["name"] in wanted or program.startswith(folders):
            yield test


def programs(options, test, targets):
    found = [test["cmd"][0]]
    for target in test["depends"]:
        found += targets.get(target, [])
    return [name for name in found if name.startswith(options.build)]


def targets_of(options):
    return {target["id"]: target["filename"] for target in introspect(options.build, "targets")}


def print_targets(options):
    targets = targets_of(options)
    names = {name for test in chosen(options) for name in programs(options, test, targets)}
    for name in sorted(names):
        print(os.path.relpath(name, options.build))


def copy(path, root):
    to = root + path
    os.makedirs(os.path.dirname(to), exist_ok=True)
    if os.path.isdir(path):
        shutil.copytree(path, to, dirs_exist_ok=True)
    elif os.path.exists(path):
        shutil.copy(path, to)


def script_of(tests, patience):
    lines = ["#!/bin/sh"]
    for number, test in enumerate(tests):
        repeated = {name: os.environ[name] for name in ("PROBED_SEED", "PROBED_CASES") if name in os.environ}
        environment = dict(test["env"], PROBED_TEST_PATIENCE=str(patience), **repeated)
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        command = " ".join(shlex.quote(part) for part in test["cmd"])
        directory = shlex.quote(test["workdir"] or "/")
        # Programs wait up to `patience` times as long for one thing, and do a hundred of them.
        limit = test["timeout"] * patience * 2
        lines += [
            f"echo 'guest: begin {number}'",
            "start=$(cut -d' ' -f1 /proc/uptime)",
            f"(cd {directory} && env {variables} timeout -k 10 {limit} {command}) >/test-output 2>&1",
            "code=$?",
            "cat /test-output",
            "echo",
            f'echo "guest: end {number} $code $start $(cut -d\' \' -f1 /proc/uptime)"',
        ]
    return "\n".join(lines) + "\n"


def pack(options):
    targets = targets_of(options)
    tests = list(chosen(options))
    for name in {name for test in tests for name in programs(options, test, targets)}:
        copy(name, options.path)
        for debug_file in glob.glob(glob.escape(name) + "-*.dwo"):
            copy(debug_file, options.path)
        for folder in DEBUG_FOLDERS:
            copy(os.path.join(os.path.dirname(name), folder), options.path)
    source = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
    for name in SOURCES:
        copy(os.path.join(source, name), options.path)
    with open(options.path + "/tests", "w") as file:
        file.write(script_of(tests, options.patience))
    os.chmod(options.path + "/tests", 0o755)


def result_of(code):
    return {0: "OK", 77: "SKIP", 124: "TIMEOUT", 137: "TIMEOUT", 143: "TIMEOUT"}.get(code, "FAIL")


def log(options):
    with open(options.path, encoding="utf-8", errors="replace") as file:
        console = file.read()
    for number, test in enumerate(chosen(options)):
        found = re.search(rf"^guest: begin {number}\n(.*?)^guest: end {number} (\d+) ([\d.]+) ([\d.]+)$", console,
                          re.MULTILINE | re.DOTALL)
        entry = {"name": test["name"], "result": "FAIL", "stdout": "the guest ended before or during this test:\n" +
                 console[-4000:]}
        if found:
            output, code, start, end = found.groups()
            entry = {"name": test["name"], "result": result_of(int(code)), "stdout": output,
                     "duration": float(end) - float(start)}
            print(f"{test['name']}: {entry['result']}, {entry['duration']:.1f} s", file=sys.stderr)
        print(json.dumps(entry))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["targets", "pack", "log"])
    parser.add_argument("build")
    parser.add_argument("path", nargs="?")
    parser.add_argument("--only", default="")
    parser.add_argument("--test", default="")
    parser.add_argument("--patience", type=int, default=1)
    options = parser.parse_intermixed_args()
    {"targets": print_targets, "pack": pack, "log": log}[options.what](options)


main()
