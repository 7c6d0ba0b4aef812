"""Ranks that fail, die, stop, never start, or only take their time: what the others say, and how they end.

usage: comm_fault_test.py COMM_FAULT START_SH RANK_SH
START_SH is mpirun.sh, or file_ranks.sh for ranks that meet without MPI.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, __file__.rpartition("/")[0])
from support import tap

COMM_FAULT, START, RANK = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:4])
TIMEOUT_S = 2
# Beyond the timeout: starting, lingering for others to hear, and mpirun's second between SIGTERM and SIGKILL, on a
# machine that has other work.
GRACE_S = 20
COMM_ERROR = "7"
RANKS = 4
# When one rank has ended badly, mpirun ends all others: SIGTERM and, a moment later, SIGKILL. What they have to say they
# say before, but whether they come to end by themselves is a race that mpirun may win. So each fault is tried twice: as
# users have it, and with these options, which leave the others to themselves.
LET_THEM_BE = ("--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0")
# file_ranks.sh always does.
UNDER_MPIRUN = pathlib.Path(START).name == "mpirun.sh"
MANNERS = ((), LET_THEM_BE) if UNDER_MPIRUN else (LET_THEM_BE,)


class Job:
    """One run: by rank, standard error and status, as text; "none" if it did not run or did not end by itself."""

    def __init__(self, what, victim, options=(), env=None, timeout_s=TIMEOUT_S, endless=()):
        with tempfile.TemporaryDirectory(prefix="ranks-", dir=os.getcwd()) as folder:
            launcher_options = options if UNDER_MPIRUN else ()
            command = [START, str(RANKS), *launcher_options, RANK, folder, COMM_FAULT, str(timeout_s), what, str(victim)]
            started = time.monotonic()
            with subprocess.Popen(command, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True) as launcher:
                if options:
                    # mpirun may end before its ranks; no launcher does before one that is stopped.
                    ends = [pathlib.Path(folder, f"{r}.status") for r in range(RANKS) if r not in endless]
                    while not all(path.exists() for path in ends) and time.monotonic() < started + timeout_s + GRACE_S:
                        time.sleep(0.01)
                    if endless:
                        launcher.terminate()
                try:
                    self.output, _ = launcher.communicate(timeout=timeout_s + GRACE_S)
                except subprocess.TimeoutExpired:
                    launcher.terminate()
                    self.output, _ = launcher.communicate()
                    self.output += "it had to be ended\n"
            self.seconds = time.monotonic() - started
            self.status = launcher.returncode
            self.errors = [self.read(folder, f"{r}.err") or "" for r in range(RANKS)]
            self.statuses = [(self.read(folder, f"{r}.status") or "none").strip() for r in range(RANKS)]

    @staticmethod
    def read(folder, name):
        path = pathlib.Path(folder, name)
        return path.read_text() if path.exists() else None

    def __str__(self):
        ranks = "".join(f"rank {r}: status {self.statuses[r]}\n{self.errors[r]}" for r in range(RANKS))
        return f"launcher: status {self.status} after {self.seconds:.1f} s\n{self.output}{ranks}"


def who(rank):
    return rf"rank {rank} \(host \S+, pid \d+\)"


class CommFault(unittest.TestCase):
    def check(self, what, victim, text, timeout_s=TIMEOUT_S, endless=()):
        """Every other rank says this of the victim and ends with the status of a CommError."""
        if UNDER_MPIRUN:
            job = Job(what, victim, timeout_s=timeout_s)
            for rank in self.others(victim):
                self.assertRegex(job.errors[rank], rf"(?m)^(error|comm_fault): \[comm\] {who(victim)} {text}$", job)
            self.assertNotEqual(job.status, 0, job)
            self.assertLess(job.seconds, TIMEOUT_S + GRACE_S, job)

        job = Job(what, victim, LET_THEM_BE, timeout_s=timeout_s, endless=endless)
        for rank in self.others(victim):
            self.assertRegex(job.errors[rank], rf"(?m)^comm_fault: \[comm\] {who(victim)} {text}\n\Z", job)
            self.assertEqual(job.statuses[rank], COMM_ERROR, job)
        return job

    @staticmethod
    def others(victim):
        return [rank for rank in range(RANKS) if rank != victim]

    def test_a_healthy_job_ends_well(self):
        job = Job("none", 0)
        self.assertEqual(job.statuses, ["0"] * RANKS, job)
        self.assertEqual("".join(job.errors), "", job)

    def test_a_rank_that_fails_is_quoted(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                job = self.check("throw", victim, r"failed at step 17 in backward of block 3: token file lost")
                self.assertEqual(job.errors[victim], "comm_fault: token file lost\n", job)
                self.assertEqual(job.statuses[victim], "1", job)

    def test_a_killed_rank_is_named_at_once(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                # A minute's timeout: a death is seen, not waited for.
                job = self.check("kill", victim, r"died; last heard at step 17 in backward of block 3", timeout_s=60)
                self.assertLess(job.seconds, GRACE_S, job)

    def test_a_rank_that_exits_without_a_word_is_named(self):
        self.check("exit", 1, r"died; last heard at step 17 in backward of block 3")

    def test_a_stopped_rank_is_named_after_the_timeout(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                job = self.check("stop", victim, rf"has not answered for {TIMEOUT_S} s; last heard at step 17 in backward of block 3",
                                 endless=(victim,))
                self.assertGreater(job.seconds, TIMEOUT_S, job)

    def test_a_rank_that_never_starts_is_named(self):
        missing = 2
        for options in MANNERS:
            with self.subTest(options=options):
                job = Job("none", 0, options, env={"NEVER_STARTS": str(missing)}, endless=(missing,))
                for rank in self.others(missing):
                    self.assertRegex(job.errors[rank], rf"^(comm_fault: )?\[comm\] rank {rank} of {RANKS} \(host \S+, pid \d+\) waited {TIMEOUT_S} s for the "
                                                       rf"other ranks to start: rank {missing} of this machine has not started; ", job)
                    if options:
                        self.assertEqual(job.statuses[rank], COMM_ERROR, job)

    def test_a_slow_rank_is_no_dead_rank(self):
        for what in ("slow", "late"):
            with self.subTest(what=what):
                job = Job(what, 1)
                self.assertEqual(job.statuses, ["0"] * RANKS, job)
                self.assertEqual("".join(job.errors), "", job)
                self.assertGreater(job.seconds, 1.5 * TIMEOUT_S, job)


tap.main()
