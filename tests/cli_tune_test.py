"""spillway tune: what it writes is taken by train and plan, and what cannot be measured is refused before anything is."""

import json
import signal
import subprocess
import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, tap

COMMAND_LINE, DISK = 2, 5


class Tune(cli.CliTest):
    def setUp(self):
        super().setUp()
        for name in ("swap", "other"):
            self.path(name).mkdir()

    def tune(self, *more):
        return self.spillway("tune", *more, "--quick", "--engines", "threads")

    def test_what_it_writes_is_taken_by_plan_and_train(self):
        run = self.tune("--nvme-path", "swap", "other", "--out", "aio.json", "--profile", "rates.json")
        self.assertEqual(run.status, 0, run.err)
        self.assertEqual([list(self.path(name).iterdir()) for name in ("swap", "other")], [[], []])
        written, rates = self.load("aio.json"), self.load("rates.json")
        self.assertEqual(set(written["aio"]), {"block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events"})
        self.assertIn(json.dumps(written, indent=2), run.out)
        self.assertEqual(written.get("spillway", {}).get("io_engine", "threads"), "threads")
        for rate in ("nvme_read_bytes", "nvme_write_bytes", "nvme_mixed_bytes", "nvme_latency_s"):
            self.assertGreater(rates[rate], 0)
        self.assertIn("comm_bytes", rates["_not_measured"])
        config = self.config(cli.ON_NVME, written, {"spillway": {"profile": "rates.json"}})
        self.assertEqual(self.plan(config)["rates"]["nvme_mixed_bytes"], rates["nvme_mixed_bytes"])
        effective = self.train(config)["config_effective"]
        self.assertEqual(effective["aio"], {**written["aio"], "use_gds": False})

    def test_prints_a_table_with_the_best_marked_and_says_how_it_goes(self):
        run = self.tune("--nvme-path", "swap")
        self.assertEqual(run.status, 0, run.err)
        lines = run.out.splitlines()
        self.assertEqual(lines[0].split()[:4], ["path", "engine", "block", "depth"])
        self.assertEqual(sum(line.endswith("<- best") for line in lines), 1)
        self.assertEqual({line.split()[1] for line in lines if line.startswith("swap")}, {"threads"})
        self.assertIn("one round", run.err)
        self.assertIn("at most", run.err)
        total = run.err.splitlines()[-1].split()
        self.assertEqual(total[1], total[3], run.err)

    def test_folders_that_do_not_serve_are_refused_as_doctor_does(self):
        self.assert_refused(self.tune("--nvme-path", "none"), DISK, "'none'", "is no folder")
        self.assert_refused(self.tune("--nvme-path", "swap", "swap/."), COMMAND_LINE, "'swap' twice", "'swap/.'")

    def test_what_makes_no_sense_is_refused_before_anything_is_measured(self):
        self.assert_refused(self.spillway("tune"), COMMAND_LINE, "tune needs --nvme-path")
        self.assert_refused(self.spillway("tune", "--nvme-path", "swap", "--engines", "spdk"), COMMAND_LINE, "spdk")
        for option in ("--out", "--profile"):
            run = self.tune("--nvme-path", "swap", option, "none/x.json")
            self.assert_refused(run, DISK, "'none' does not exist", option)
            self.assertNotIn("measurements", run.err)

    def test_an_interrupt_leaves_nothing(self):
        before = self.files()
        command = [cli.SPILLWAY, "tune", "--nvme-path", "swap", "--out", "aio.json", "--profile", "rates.json", "--engines", "threads"]
        with subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            process.stderr.readline()  # what it is going to do
            process.stderr.readline()  # a tenth is done
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=cli.TIMEOUT_S)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assert_same_files(before)


tap.main()
