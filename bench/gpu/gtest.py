"""Runs one GoogleTest program; its figures are the cases, what failed, and what the cases have recorded."""

import json
import os
import subprocess
import sys

from target import Target
from workload import SKIPPED, work_folder

# One case of so many in a dry run: CI runs them all anyway.
DRY_SHARDS = 24
SHARE = "largest_share_of_bound"  # recorded by the tests of kernels: the largest |result - reference| over what is allowed
SAID_BY_EVERY_CASE = {"name", "file", "line", "status", "result", "timestamp", "time", "classname", "failures", "type_param", "value_param"}


def run(program, *arguments, prefix=(), shards=1):
    """(exit status, figures)"""
    report = work_folder() / "gtest.json"
    report.unlink(missing_ok=True)
    sharding = {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": "0"} if shards > 1 else {}
    done = subprocess.run([*prefix, program, f"--gtest_output=json:{report}", "--gtest_brief=1", *arguments], env={**os.environ, **sharding}, check=False)
    if not report.exists():
        return done.returncode or 1, {"cases": 0, "failed": ["no report: the program ended before its last case"], "recorded": {}}
    cases = [case for suite in json.loads(report.read_text()).get("testsuites", []) for case in suite["testsuite"]]
    ran = [case for case in cases if case["status"] == "RUN" and case["result"] != "SKIPPED"]
    recorded = {f"{case['classname']}.{case['name']}": record
                for case in ran if (record := {key: value for key, value in case.items() if key not in SAID_BY_EVERY_CASE})}
    shares = [float(record[SHARE]) for record in recorded.values() if SHARE in record]
    failed = [f"{case['classname']}.{case['name']}" for case in ran if case.get("failures")]
    return done.returncode, {"cases": len(ran), SHARE: max(shares, default=None), "failed": failed, "recorded": recorded}


def main():
    status, figures = run(sys.argv[1], shards=DRY_SHARDS if Target.of_step().dry else 1)
    print(json.dumps(figures))
    if status == 0 and figures["cases"] == 0:
        print("no case of it runs here")
        status = SKIPPED
    sys.exit(status if status >= 0 else 1)


if __name__ == "__main__":
    main()
