"""A run that is told to stop, or killed: files complete, and nothing left on the disk of the NVMe tier."""

import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, tap

DEADLINE_S = 60


class Interrupt(cli.CliTest):
    def start(self):
        """A run of many steps, just past its first."""
        self.path("swap").mkdir(exist_ok=True)
        config = self.config(cli.offload("nvme", "nvme", "swap"), {"steps_per_print": 1})
        process = subprocess.Popen(self.arguments("train", config, "--out", "out", steps=100_000), cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.read_until(process, r"step +1/")
        return process

    def read_until(self, process, pattern):
        for line in process.stdout:
            if re.match(pattern, line):
                return
        self.fail(f"ended before {pattern}: {process.stderr.read()}")

    def check_ends_after_its_step(self, number):
        process = self.start()
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 128 + number, err)
        steps = int(re.search(rf"(?m)^ended by signal {number} after step (\d+)$", out).group(1))
        self.assertGreaterEqual(steps, 1)
        summary, metrics = self.load("out/summary.json"), self.metrics("out/metrics.jsonl")
        self.assertEqual(summary["steps"], steps)
        self.assertEqual([r["step"] for r in metrics if r["record"] == "step"], list(range(1, steps + 1)))
        self.assertTrue(self.load("out/trace.json"))
        self.assertTrue(self.path("out/loss.svg").is_file())
        self.assertEqual(os.listdir(self.path("swap")), [])
        return summary

    def test_sigint_ends_the_run_after_its_step(self):
        self.check_ends_after_its_step(signal.SIGINT)

    def test_sigterm_ends_the_run_after_its_step(self):
        summary = self.check_ends_after_its_step(signal.SIGTERM)
        # What an interrupted run has done is what a run of so many steps does.
        whole = self.train(self.config(cli.offload("nvme", "nvme", "swap")), steps=summary["steps"])
        self.assertEqual(whole["state_hash"], summary["state_hash"])

    def test_a_second_signal_ends_it_at_once(self):
        process = self.start()
        # Two signals that wait together are one: the second follows once the handler has run.
        process.send_signal(signal.SIGINT)
        self.wait_for(lambda: process.poll() is not None or not self.catches(process.pid, signal.SIGINT))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
        # Had it ended first, it would have ended as after one signal.
        self.assertIn(process.returncode, (-signal.SIGINT, 128 + signal.SIGINT))
        self.assertEqual(os.listdir(self.path("swap")), [])

    def catches(self, pid, number):
        try:
            with open(f"/proc/{pid}/status") as status:
                caught = next(line for line in status if line.startswith("SigCgt:"))
        except (FileNotFoundError, ProcessLookupError, StopIteration):
            return False
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

    def wait_for(self, condition):
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.002)

    def test_sigkill_leaves_no_swap_file_and_whole_lines(self):
        process = self.start()
        swap_files = self.open_swap_files(process.pid)
        self.assertEqual(len(swap_files), 1)
        self.read_until(process, r"step +5/")
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertEqual(os.listdir(self.path("swap")), [])
        metrics = self.metrics("out/metrics.jsonl")
        self.assertGreaterEqual(metrics[-1]["step"], 5)
        self.assertFalse(self.path("out/summary.json").exists())

    def open_swap_files(self, pid):
        """Files of the swap folder that the process holds open, which have no name."""
        links = []
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            target = os.readlink(descriptor.path)
            if target.startswith(str(self.path("swap").resolve())):
                self.assertTrue(target.endswith("(deleted)"), target)
                links.append(target)
        return links

    def test_sigkill_gives_the_space_back(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to mount a file system whose space nobody else uses")
        self.path("swap").mkdir()
        for command in (["truncate", "-s", "64M", "image"], ["mkfs.ext4", "-q", "-F", "image"], ["mount", "-o", "loop", "image", "swap"]):
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self.skipTest(f"cannot mount here: {done.stderr.strip()}")
        try:
            free = os.statvfs(self.path("swap")).f_bfree
            process = self.start()
            self.assertLess(os.statvfs(self.path("swap")).f_bfree, free)
            process.kill()
            process.communicate(timeout=DEADLINE_S)
            self.wait_for(lambda: os.statvfs(self.path("swap")).f_bfree >= free)
        finally:
            subprocess.run(["umount", "--lazy", "swap"], cwd=self.folder, check=True)


tap.main()
