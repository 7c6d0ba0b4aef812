"""./gpu-check.sh without a card: every step against the simulation, steps that hang or crash, an interrupt, no time, and the
bundle that it runs from on another machine.

usage: gpu_check_test.py BUILD_FOLDER
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, __file__.rpartition("/")[0])
from support import tap

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(sys.argv[1]).resolve()

# Stands where NVIDIA's tool would: takes its options, runs the program.
SANITIZER = """#!/bin/sh
[ "$1" = --tool ] && [ "$3" = --error-exitcode ] || exit 3
shift 4
exec "$@"
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="scratch-", dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def command(self, *arguments, root=ROOT, build=BUILD):
        return [root / "gpu-check.sh", "--build", build, "--out", self.out, *arguments]

    def check(self, *arguments, path="", **where):
        environment = {**os.environ, "SPILLWAY_PYTHON": sys.executable, "PATH": f"{path}:{os.environ['PATH']}"}
        return subprocess.run(self.command(*arguments, **where), env=environment, capture_output=True, text=True, timeout=280, check=False)

    def results(self):
        return json.loads((self.out / "results.json").read_text())

    def steps(self):
        return {step["step"]: step for step in self.results()["steps"]}

    def test_every_step_against_the_simulation(self):
        tool = self.out / "compute-sanitizer"
        tool.write_text(SANITIZER)
        tool.chmod(0o755)
        run = self.check("--dry-run", "--plant", "hang", "crash", path=self.out)
        steps = self.steps()
        bad = {name: (step["reason"], step["tail"]) for name, step in steps.items() if step["status"] != "passed" and not name.startswith("planted_")}
        bad.pop("peers", None)  # needs PyTorch
        self.assertEqual(bad, {}, run.stdout)
        self.assertEqual(steps["planted_hang"]["status"], "failed")
        self.assertIn("had not ended after 2 s", steps["planted_hang"]["reason"])
        self.assertEqual(steps["planted_hang"]["figures"], {"planted": True})
        self.assertEqual((steps["planted_crash"]["status"], steps["planted_crash"]["reason"]), ("failed", "ended by SIGABRT"))
        self.assertEqual(run.returncode, 1)
        results = self.results()
        self.assertTrue(results["ended"] and results["simulated"])
        self.assertEqual(run.stdout.splitlines()[-1], "{passed} passed, {failed} failed, {skipped} skipped".format(**results))
        self.assertEqual(results["failed"], 2)
        self.assert_figures(steps)
        self.assertEqual([path.name for path in self.out.glob("work-*")], [])

    def assert_figures(self, steps):
        """What each step has found, as far as the simulation has it right."""
        figures = {name: step["figures"] for name, step in steps.items()}
        self.assertEqual(figures["doctor"]["no_cuda"], "")
        self.assertEqual(figures["gemm_support"]["differences"], [], "the simulated cuBLASLt does not do what its table says")
        self.assertEqual((self.out / "gemm_support.txt").read_text().split(), (ROOT / "gpu/gemm_support.txt").read_text().split())
        for name in ("ops_layernorm", "memcheck", "racecheck", "synccheck"):
            self.assertGreater(sum(figures[name]["cases"].values()) if name.endswith("check") else figures[name]["cases"], 0, name)
        self.assertGreater(figures["ops_layernorm"]["largest_share_of_bound"], 0)
        for dtype, losses in figures["losses"].items():
            self.assertLess(losses["largest_deviation"], losses["allowed"], dtype)
        self.assertEqual(len(figures["placements"]["state_hash"]), 4)
        for direction in ("h2d", "d2h", "both"):
            self.assertGreater(figures["link"][direction]["to_plain"], 0)
        for where in ("device", "host"):
            self.assertGreater(figures["adam"][where]["to_copy"], 0)
        for placement in ("none", "cpu", "nvme"):
            for point in figures[f"throughput_{placement}"]["curve"]:
                for figure in ("tokens_per_s", "step_over_busiest", "predicted_over_measured", "of_measured_roof"):
                    self.assertGreater(point[figure], 0, (placement, figure))
                self.assertIsNone(point["of_data_sheet"], "the simulated device has no data sheet")
        self.assertGreater(figures["large_model"]["of_measured_roof"], 0)

    def test_an_interrupt_ends_it_with_whole_results(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            shutil.rmtree(self.out / "logs", ignore_errors=True)
            check = subprocess.Popen(self.command("--dry-run", "--plant", "crash", "hang", "--only", "planted_*"), stdout=subprocess.PIPE, text=True,
                                     start_new_session=True)
            self.assertIn("planted_crash", check.stdout.readline())
            self.await_output("planted_hang")
            check.send_signal(number)
            output, _ = check.communicate(timeout=30)
            self.assertEqual(check.returncode, 130)
            self.assertEqual(output.splitlines()[-1], "0 passed, 2 failed, 0 skipped")
            self.assertFalse(self.results()["ended"])
            self.assertEqual(self.steps()["planted_hang"]["reason"], "interrupted")

    def await_output(self, step):
        """Until it has said something, so that the signal finds it running."""
        log = self.out / f"logs/{step}.log"
        while not (log.exists() and log.read_text()):
            time.sleep(0.01)

    def test_a_step_leaves_no_process(self):
        self.check("--dry-run", "--plant", "hang", "--only", "planted_hang")
        mark = f"SPILLWAY_CHECK_OUT={self.out}".encode()
        time.sleep(0.1)  # the kernel takes a moment to bury the dead
        left = [entry for entry in os.listdir("/proc") if entry.isdigit() and mark in self.environment_of(entry)]
        self.assertEqual(left, [])

    @staticmethod
    def environment_of(process):
        try:
            return pathlib.Path("/proc", process, "environ").read_bytes().split(b"\0")
        except OSError:
            return []

    def test_steps_beyond_the_time_are_skipped(self):
        run = self.check("--dry-run", "--minutes", "0.01", "--only", "smoke", "link")
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1]), (0, "0 passed, 0 failed, 2 skipped"))
        self.assertIn("no time left", self.steps()["smoke"]["reason"])

    def test_a_step_that_is_none_is_named(self):
        run = self.check("--dry-run", "--only", "smok")
        self.assertEqual(run.returncode, 1)
        self.assertIn("no step 'smok'; there are: doctor, smoke", run.stderr)

    def test_a_folder_without_the_program_is_refused(self):
        run = self.check("--dry-run", build=self.out)
        self.assertEqual(run.returncode, 1)
        self.assertIn("app/spillway; build it first", run.stderr)

    def test_the_bundle_holds_all_it_needs(self):
        bundle = self.out / "bundle"
        # The two large ones are on this machine, too; without them the test need not copy them.
        made = subprocess.run([ROOT / "scripts/gpu_bundle.sh", "--build", BUILD, "--out", bundle, "--without", "libcublasLt", "--without", "libnccl"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("libcudart", " ".join(path.name for path in (bundle / "build/lib").iterdir()))
        self.check("--only", "smoke", root=bundle, build=bundle / "build")
        smoke = self.steps()["smoke"]
        # What a machine without a card answers; only a program that found its libraries gets so far.
        self.assertTrue(smoke["status"] == "passed" or "no CUDA device" in smoke["tail"], smoke)


tap.main()
