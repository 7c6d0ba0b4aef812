"""Step memcheck, racecheck or synccheck: NVIDIA's compute-sanitizer over the kernel tests, the smallest cases of each program."""

import glob
import json
import os
import shutil
import subprocess
import sys
import time

import gtest
from target import Target
from workload import skip

FOUND = 9  # exit status that stands for a finding
SHARDS = 12  # one case of so many of each program: the tool slows kernels down by one or two orders of magnitude
TIME_S = 12.0  # programs are begun for so long


def find_tool():
    folders = [os.path.join(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *folders, "/usr/local/cuda/bin"]))
    return tool or skip("there is no compute-sanitizer in PATH, CUDA_HOME/bin or /usr/local/cuda/bin")


def probe(prefix):
    """Whether it may look at the device at all: containers often forbid it."""
    target = Target.of_step()
    done = subprocess.run([*prefix, target.program("smoke")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode not in (0, FOUND):
        skip(f"compute-sanitizer cannot work here: {' '.join(done.stdout.split())[-300:]}")


def main():
    start = time.monotonic()
    prefix = [find_tool(), "--tool", sys.argv[1], "--error-exitcode", str(FOUND)]
    probe(prefix)
    checked, left_out, failed = {}, [], []
    for program in sorted(glob.glob(str(Target.of_step().build / "tests/device/ops_*_test"))):
        name = os.path.basename(program)
        if time.monotonic() - start > TIME_S:
            left_out.append(name)
            continue
        status, figures = gtest.run(program, prefix=prefix, shards=SHARDS)
        checked[name] = figures["cases"]
        failed += [name] if status != 0 else []
        print(json.dumps({"cases": checked, "left_out": left_out, "failed": failed}), flush=True)
    if failed:
        sys.exit(f"{sys.argv[1]} has findings, or the tests fail under it: {', '.join(failed)}")
    if not checked:
        skip("no kernel test was built")
    print(json.dumps({"cases": checked, "left_out": left_out, "failed": failed}))


main()
