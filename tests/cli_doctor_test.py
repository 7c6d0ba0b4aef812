"""spillway doctor: what it says of this machine, of folders that serve, and of folders that do not."""

import json
import os
import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, tap

COMMAND_LINE, DISK = 2, 5


class Doctor(cli.CliTest):
    def test_says_what_the_machine_has(self):
        run = self.spillway("doctor")
        self.assertEqual(run.status, 0, run.err)
        for words in ("cpu ", "memory ", "optimizer ", "I/O engine ", "advice "):
            self.assertIn(words, run.out)

    def test_json_agrees_with_the_operating_system(self):
        run = self.spillway("doctor", "--json")
        self.assertEqual(run.status, 0, run.err)
        report = json.loads(run.out)
        self.assertEqual(report["host"]["cores"], sorted(os.sched_getaffinity(0)))
        self.assertEqual(report["host"]["memory_bytes"], os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"))
        self.assertEqual(sorted(core for node in report["host"]["nodes"] for core in node["cores"]), report["host"]["cores"])
        self.assertGreater(report["host"]["optimizer_bytes_per_s"], 0)
        self.assertTrue(report["no_cuda"] or report["devices"])

    def test_measures_a_folder_and_leaves_nothing_there(self):
        self.path("swap").mkdir()
        report = json.loads(self.spillway("doctor", "--json", "--nvme-path", "swap").out)
        (disk,) = report["disks"]
        self.assertEqual(disk["error"], "")
        free = os.statvfs(self.path("swap"))
        self.assertAlmostEqual(disk["free_bytes"], free.f_bavail * free.f_frsize, delta=0.1 * disk["free_bytes"])
        for rate in ("read_bytes_per_s", "write_bytes_per_s", "mixed_bytes_per_s", "latency_s"):
            self.assertGreater(disk[rate], 0)
        self.assertEqual(list(self.path("swap").iterdir()), [])

    def test_takes_the_folders_of_a_configuration(self):
        for name in ("a", "b"):
            self.path(name).mkdir()
        config = self.config(cli.offload(param="nvme", optimizer="nvme", path=["a", "b"]), {"aio": {"block_size": 262144, "queue_depth": 8}})
        report = json.loads(self.spillway("doctor", "--json", "--config", config).out)
        self.assertEqual([disk["path"] for disk in report["disks"]], ["a", "b"])
        self.assertEqual([disk["error"] for disk in report["disks"]], ["", ""])

    def test_a_folder_that_is_none_is_said_and_is_the_status(self):
        run = self.spillway("doctor", "--nvme-path", "none")
        self.assertEqual(run.status, DISK)
        self.assertIn("none: is no folder", run.out)

    def test_a_configuration_that_is_none(self):
        self.assert_refused(self.spillway("doctor", "--config", "missing.json"), COMMAND_LINE, "missing.json")


tap.main()
