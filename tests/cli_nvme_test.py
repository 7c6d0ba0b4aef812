"""The NVMe tier under the conditions its users have: few rights, other file systems, disks of other sector sizes, deaths."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, confined, disk, tap

IS_ROOT = disk.mounts_are_private()
NEEDS_ROOT = unittest.skipUnless(IS_ROOT, "mounting file systems needs root")
STEPS = 8
KILLS = 20
LONG_RUN = 500


class Nvme(cli.CliTest):
    def setUp(self):
        super().setUp()
        self.path("swap").mkdir()

    def everything_in(self, *folders):
        return cli.everything_on_nvme([str(folder) for folder in folders])

    def hash_in(self, *folders, preexec_fn=None, words=()):
        """The state hash of a run that swaps to these folders, and says each of the words on stderr."""
        config = self.config(self.everything_in(*folders))
        done = subprocess.run(self.arguments("train", config, "--summary", "summary.json", steps=STEPS), cwd=self.folder, timeout=cli.TIMEOUT_S,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, preexec_fn=preexec_fn)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertIn("weights: nvme 100%; optimizer state: nvme 100%; gradients: nvme 100%; activation checkpoints: nvme\n", done.stdout)
        return self.load("summary.json")["state_hash"]

    def reference(self):
        return self.train(self.config(), steps=STEPS)["state_hash"]

    def test_everything_on_nvme_changes_nothing(self):
        self.assertEqual(self.hash_in("swap"), self.reference())

    def test_an_unprivileged_user_with_little_locked_memory(self):
        expected = self.reference()
        # Where anybody may go, and the disk is one.
        with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
            folder = pathlib.Path(name)
            for source in (cli.SPILLWAY, self.path("text.txt"), self.path("profile.json")):
                shutil.copy(source, folder)
            self.folder = folder
            config = self.config(self.everything_in(folder))
            for path in (folder, *folder.iterdir()):
                os.chmod(path, 0o777)
            command = [str(folder / "spillway"), *self.arguments("train", config, "--summary", "summary.json", steps=STEPS)[1:]]
            limited = confined.as_nobody if IS_ROOT else confined.with_locked_memory
            for limit, said in (8 << 20, False), (64 << 10, True):
                with self.subTest(limit):
                    done = subprocess.run(command, cwd=folder, timeout=cli.TIMEOUT_S, capture_output=True, text=True, check=False, preexec_fn=limited(limit))
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual("ulimit -l" in done.stderr, said, done.stderr)
                    self.assertEqual(self.load("summary.json")["state_hash"], expected)
                    self.path("summary.json").unlink()

    def test_a_filter_that_forbids_io_uring(self):
        self.assertEqual(self.hash_in("swap", preexec_fn=confined.without(confined.IO_URING_SETUP), words=["io_uring", "seccomp"]), self.reference())

    def test_a_filter_that_forbids_all_asynchronous_io(self):
        preexec_fn = confined.without(confined.IO_URING_SETUP, confined.IO_SETUP)
        self.assertEqual(self.hash_in("swap", preexec_fn=preexec_fn, words=["using I/O engine threads", "io_uring", "libaio"]), self.reference())

    @NEEDS_ROOT
    def test_file_systems(self):
        expected = self.reference()
        for kind in disk.usable_kinds():
            with self.subTest(kind):
                self.assertEqual(self.hash_in(disk.Disk(self, kind, kind).folder), expected)
        with self.subTest("tmpfs"):
            self.assertEqual(self.hash_in(disk.mount_tmpfs(self, "tmpfs")), expected)
        with self.subTest("overlay"):
            self.assertEqual(self.hash_in(disk.mount_overlay(self, "overlay")), expected)

    @NEEDS_ROOT
    def test_sector_sizes(self):
        expected = self.reference()
        for sector in (512, 4096):
            with self.subTest(sector):
                self.assertEqual(self.hash_in(disk.Disk(self, f"sectors-{sector}", sector=sector).folder), expected)

    @NEEDS_ROOT
    def test_several_paths(self):
        ext4, tmpfs = disk.Disk(self, "ext4").folder, disk.mount_tmpfs(self, "tmpfs")
        self.assertEqual(self.hash_in("swap", ext4, tmpfs), self.reference())

    def test_deaths_leave_nothing(self):
        chance = random.Random(1)
        config = self.config(self.everything_in("swap"))
        before = disk.run("du", "-s", self.path("swap"))
        for _ in range(KILLS):
            process = subprocess.Popen(self.arguments("train", config, steps=1_000_000), cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                process.wait(timeout=chance.uniform(0.02, 1.2))
                self.fail(process.stderr.read())
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
            process.stderr.close()
        self.assertEqual(disk.run("du", "-s", self.path("swap")), before)
        self.assertEqual(os.listdir(self.path("swap")), [])

    def resident(self, pid):
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))

    def test_resident_memory_is_flat(self):
        config = self.config(self.everything_in("swap"), {"steps_per_print": 1})
        process = subprocess.Popen(self.arguments("train", config, "--out", "out", steps=LONG_RUN), cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        sizes = {}
        for line in process.stdout:
            for step in (50, LONG_RUN):
                if line.startswith("step") and f" {step}/{LONG_RUN}" in line and process.poll() is None:
                    sizes[step] = self.resident(process.pid)
        self.assertEqual(process.wait(), 0, process.stderr.read())
        process.stdout.close()
        process.stderr.close()
        self.assertLess(sizes[LONG_RUN] - sizes[50], 0.01 * sizes[50], sizes)


tap.main()
