"""A disk that changes or vanishes under a run: an error that names path, tile and layer, no further step, and the last
checkpoint as it was."""

import os
import re
import subprocess
import sys
import time
import unittest

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, disk, tap

NEEDS_ROOT = unittest.skipUnless(disk.mounts_are_private(), "mounting file systems needs root")
DEADLINE_S = 60
SAVE_EVERY = 5
PAGE = 4096


class Loss(cli.CliTest):
    def start(self, folder, out="out", steps=1_000_000):
        """A run that has saved at least once."""
        config = self.config(cli.everything_on_nvme([str(folder)]), {"steps_per_print": 1}, name=f"{out}.json")
        process = subprocess.Popen(self.arguments("train", config, "--out", out, "--save-every", str(SAVE_EVERY), steps=steps), cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for cleanup in (process.stderr.close, process.stdout.close, process.wait, process.kill):
            self.addCleanup(cleanup)
        for line in process.stdout:
            if re.match(rf"step +{2 * SAVE_EVERY + 1}/", line):
                return process
        self.fail(f"ended early: {process.stderr.read()}")

    def swap_file(self, process):
        files = disk.swap_descriptors(process.pid)
        self.assertEqual(len(files), 1, files)
        return files[0]

    def check_ends(self, process, folder, *words, tile=True):
        """The run ends by an error that names the folder, says the words, and names a tile and its layer."""
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assertNotIn(process.returncode, (0, None), err)
        self.assertGreater(process.returncode, 0, err)
        error = err[err.rfind("spillway: "):]
        for word in (str(folder), *words):
            self.assertIn(word, error)
        if tile:
            self.assertRegex(error, r"(tile \d+|weights|gradient|output) .*of (embedding|block \d+|head)")
        self.assertIn("resume", error)
        # What was reported as done is all there is.
        steps = [int(step) for step in re.findall(r"(?m)^step +(\d+)/", out)]
        saved = sorted(self.path("out").glob("step-*"))
        self.assertTrue(saved, os.listdir(self.path("out")))
        inspected = self.spillway("inspect", str(saved[-1]))
        self.assertEqual(inspected.status, 0, inspected.err)
        return steps, saved[-1]

    def check_resumes(self, checkpoint):
        """The checkpoint goes on, without the lost disk, to the state of a run that nothing happened to."""
        steps = int(checkpoint.name.removeprefix("step-")) + 3
        resumed = self.train(self.config(), "--resume", str(checkpoint), steps=steps)
        self.assertEqual(resumed["state_hash"], self.train(self.config(), steps=steps)["state_hash"])

    def damage_until_it_ends(self, process, damage):
        """Again and again: what was damaged may be written anew before it is read."""
        deadline = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                damage()
            except OSError:
                break  # it has ended
            time.sleep(0.01)

    def test_flipped_bits(self):
        self.path("swap").mkdir()
        process = self.start("swap")
        with open(self.swap_file(process), "r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size

            def flip():
                for offset in range(8 * PAGE, size, 64 * PAGE):
                    byte = os.pread(file.fileno(), 1, offset)[0]
                    os.pwrite(file.fileno(), bytes([byte ^ 16]), offset)

            self.damage_until_it_ends(process, flip)
        _, checkpoint = self.check_ends(process, "swap", "checksum")
        self.check_resumes(checkpoint)

    def test_a_truncated_file(self):
        self.path("swap").mkdir()
        process = self.start("swap")
        with open(self.swap_file(process), "r+b", buffering=0) as file:
            self.damage_until_it_ends(process, lambda: os.ftruncate(file.fileno(), 2 * PAGE))
        self.check_ends(process, "swap", "truncated")

    def test_the_file_of_another_run(self):
        self.path("swap").mkdir()
        self.path("other").mkdir()
        process, other = self.start("swap"), self.start("other", out="other-out")
        with open(self.swap_file(other), "rb", buffering=0) as source:
            content = source.read()
        other.kill()
        with open(self.swap_file(process), "r+b", buffering=0) as file:
            self.damage_until_it_ends(process, lambda: os.pwrite(file.fileno(), content, 0))
        self.check_ends(process, "swap", "another run")

    @NEEDS_ROOT
    def test_a_disk_that_is_pulled_out(self):
        pulled = disk.Disk(self, "pulled")
        process = self.start(pulled.folder)
        pulled.lose_data()
        _, checkpoint = self.check_ends(process, pulled.folder)
        self.check_resumes(checkpoint)

    @NEEDS_ROOT
    def test_a_path_that_is_unmounted(self):
        """An open file keeps its file system: busy for umount, and still there after a lazy one. Nothing is lost, nor stopped."""
        mounted = disk.Disk(self, "mounted")
        process = self.start(mounted.folder)
        self.assertNotEqual(subprocess.run(["umount", mounted.folder], capture_output=True, check=False).returncode, 0)
        disk.run("umount", "--lazy", mounted.folder)
        disk.run("mount", "-t", "tmpfs", "tmpfs", mounted.folder)  # for the clean-up, and to be there under the same name
        for line in process.stdout:
            if re.match(r"step +40/", line):
                break
        process.terminate()
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 128 + 15, err)
        self.assertEqual(os.listdir(mounted.folder), [])
        steps = int(re.search(r"(?m)^ended by signal 15 after step (\d+)$", out).group(1))
        self.assertGreaterEqual(steps, 40)
        self.assertEqual(self.load("out/summary.json")["state_hash"], self.train(self.config(), steps=steps)["state_hash"])


tap.main()
