"""The program on a plain x86-64 processor, which has SSE2 and no more: emulated, where an instruction of any later set ends the
program with SIGILL. What it computes there is what it computes here.

usage: cli_baseline_cpu_test.py SPILLWAY EMULATOR
"""

import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, tap

# What qemu's plainest model still has beyond x86-64-v1 is taken away.
PLAIN = [sys.argv[2], "-cpu", "qemu64,-pni,-cx16"]
# OpenBLAS has a kernel for each processor, and they add in different orders: here it is to take the one that it finds there.
AS_THERE = {"OPENBLAS_CORETYPE": "Barcelona"}


class PlainProcessor(cli.CliTest):
    def trained(self, folder, prefix=(), env=None):
        """The state's hash, and each step's loss and norm."""
        run = self.run_command([*prefix, *self.arguments("train", self.config(cli.ON_NVME), "--out", folder, "--sequence-length", "16", steps=3)], env)
        self.assertEqual(run.status, 0, run.err)
        steps = [record for record in self.metrics(f"{folder}/metrics.jsonl") if record["record"] == "step"]
        return self.load(f"{folder}/summary.json")["state_hash"], [(step["loss"], step["gradient_norm"]) for step in steps]

    def test_offers_no_instruction_set_that_it_lacks(self):
        run = self.spillway("--version", prefix=PLAIN)
        self.assertEqual((run.status, run.err), (0, ""))
        self.assertRegex(run.out, r"instruction set: +scalar \(usable here: scalar\)")
        refused = self.run_command([*PLAIN, *self.arguments("train", self.config())], {"SPILLWAY_ISA": "avx2"})
        self.assert_refused(refused, 2, '"avx2"', "lacks", "usable here: scalar")

    def test_trains_to_the_bits_of_any_other(self):
        there, here = self.trained("there", PLAIN), self.trained("here", env=AS_THERE)
        self.assertEqual(len(there[1]), 3)
        self.assertEqual(there, here)


tap.main()
