"""Counts what one `meson test` run passed, failed and skipped, and prints the logs of what failed.

usage: test_report.py BUILD_FOLDER COUNTS_FILE

A test that names its cases (GoogleTest, TAP) counts once per case (Meson's testlog.junit.xml lists them), any
other test once. The junit file alone is not enough: an executable that crashed, ran out of time or was stopped by a
sanitizer after its last case leaves no failed case there. So every test of testlog.json that did not end
well counts at least one failure.
"""

import collections
import json
import pathlib
import re
import sys
import xml.etree.ElementTree

GOOD = {"OK", "EXPECTEDFAIL"}
LOG_LINES = 300


def case_outcomes(junit_file):
    """{test name: Counter of passed, failed, skipped}, from suites named project.test.GoogleTestSuite or project.test."""
    outcomes = collections.defaultdict(collections.Counter)
    for suite in xml.etree.ElementTree.parse(junit_file).iter("testsuite"):
        _, _, test_and_suite = suite.get("name", "").partition(".")
        test = test_and_suite.rpartition(".")[0] or test_and_suite
        if not test:
            continue  # tests without cases: one suite, named after the project
        for case in suite.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                outcome = "failed"
            elif case.find("skipped") is not None or case.get("status") == "notrun":
                outcome = "skipped"
            else:
                outcome = "passed"
            outcomes[test][outcome] += 1
    return outcomes


def count(tests, outcomes):
    total = collections.Counter(passed=0, failed=0, skipped=0)
    for test in tests:
        counts = collections.Counter(outcomes.get(test["name"], {}))
        if test["result"] in GOOD:
            if not counts:
                counts["passed"] = 1
        elif test["result"] == "SKIP":
            if not counts:
                counts["skipped"] = 1
        elif not counts["failed"]:
            counts["failed"] = 1
        total += counts
    return {outcome: total[outcome] for outcome in ("passed", "failed", "skipped")}


def without_passed_cases(log):
    """A GoogleTest log less the output of the cases that passed; other logs unchanged."""
    kept, case = [], None
    for line in log.splitlines():
        if re.match(r"\[ RUN      \]", line):
            kept.extend(case or [])
            case = [line]
        elif case is not None and re.match(r"\[(       OK |  SKIPPED )\]", line):
            case = None
        elif case is not None and re.match(r"\[  FAILED  \]", line):
            kept.extend(case + [line])
            case = None
        else:
            (kept if case is None else case).append(line)
    return kept + (case or [])


def print_failure(test, log_file):
    print(f"--- {test['name']}: {test['result']}, exit status {test['returncode']}")
    lines = without_passed_cases(test.get("stdout", "")) + test.get("stderr", "").splitlines()
    if len(lines) > LOG_LINES:
        half = LOG_LINES // 2
        lines = lines[:half] + [f"... {len(lines) - LOG_LINES} lines; all of them: {log_file}"] + lines[-half:]
    print("\n".join(lines))


def main():
    logs = pathlib.Path(sys.argv[1]) / "meson-logs"
    tests = [json.loads(line) for line in (logs / "testlog.json").read_text(errors="replace").splitlines()]
    for test in tests:
        if test["result"] not in GOOD | {"SKIP"}:
            print_failure(test, logs / "testlog.txt")
    counts = count(tests, case_outcomes(logs / "testlog.junit.xml"))
    pathlib.Path(sys.argv[2]).write_text("{passed} {failed} {skipped}\n".format(**counts))


main()
