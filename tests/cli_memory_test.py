"""A step takes no memory: what is allocated and resident when step 1 starts is what there is until the end."""

import json
import resource
import subprocess
import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, tap

# 13 M parameters, about 200 MiB of state: beside it the reports and libraries of the process are small.
SHAPE = {"n_layer": 4, "n_head": 4, "n_embd": 512, "n_positions": 64, "vocab_size": 256}
PLACEMENTS = {"device": {}, "cpu": cli.offload("cpu", "cpu"), "nvme": cli.merged(cli.ON_NVME, {"spillway": {"tile_size": "256Ki"}})}
STEPS = 8


class Memory(cli.CliTest):
    def setUp(self):
        super().setUp()
        self.write("shape.json", json.dumps(SHAPE))

    def run_arguments(self, placement, out="out"):
        return self.arguments("train", self.config(placement), "--out", out, model="./shape.json", steps=STEPS)

    def data_bytes(self, pid):
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))

    def test_steps_need_no_more_than_what_is_there_at_the_first(self):
        for name, placement in PLACEMENTS.items():
            with self.subTest(name):
                process = subprocess.Popen(self.run_arguments(placement, name), cwd=self.folder, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, text=True)
                # Printed when everything is allocated, right before step 1.
                self.assertTrue(any(line.startswith("predicted step") for line in process.stdout), "no prediction")
                limit = self.data_bytes(process.pid) * 101 // 100
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit, limit))
                out, err = process.communicate(timeout=cli.TIMEOUT_S)
                self.assertEqual(process.returncode, 0, err)
                self.assertIn(f"step {STEPS}/{STEPS}", out)
                summary = self.load(f"{name}/summary.json")
                self.assertEqual(summary["steps"], STEPS)
                growth = summary["rss_peak_in_steps"] - summary["rss_at_start"]
                self.assertLess(growth, 0.01 * summary["rss_at_start"], summary["rss_at_start"])

    def test_a_limit_below_the_plan_is_refused_at_start(self):
        one_product = 128 << 20
        for limit, words in ((one_product, "for matrix products"), (2 * one_product + (48 << 20), "for the device arena")):
            with self.subTest(words):
                run = self.run_command(["prlimit", f"--data={limit}", *self.run_arguments({})])
                self.assert_refused(run, 4, "[host] map", words, "Cannot allocate memory", "ulimit")
                self.assertFalse(self.path("out").exists())


tap.main()
