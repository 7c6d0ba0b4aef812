"""A run that is killed two hundred times, any process of it at any moment, and resumed each time: a complete checkpoint
is there at all times, and in the end the weights are those of a run that nothing happened to.

usage: cli_kill_test.py SPILLWAY RANKS
"""

import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, ranks, tap

KILLS = {1: 40, 2: 130, 3: 30}  # by number of ranks
WITHIN_A_SAVE = {1: 5, 2: 16, 3: 3}  # of them, at least
SAVE_EVERY = 2
MORE_STEPS = 12  # that the last life takes after the last kill
# Ranks end when they see another's end, or when they miss their launcher; what is stuck would stay for ever.
GONE_WITHIN_S = 20
END_WITHIN_S = 60


class Kill(ranks.RanksTest):
    def setUp(self):
        super().setUp()
        self.chance = random.Random(20)
        self.path("swap").mkdir()
        self.settings = self.config(cli.offload("nvme", "nvme", "swap"), {"spillway": {"threads": 1, "comm_timeout_s": 3}})
        self.counts = collections.Counter()

    def command(self, world, out, *more, steps):
        words = self.arguments("train", self.settings, "--out", out, "--sequence-length", "16", *more, steps=steps)
        return words if world == 1 else [*ranks.mpirun(world), *words]

    def begin(self, world):
        """A life of the run: it goes on from the newest checkpoint, and would go on for ever."""
        log = open(self.path("log.txt"), "w+", encoding="utf-8")
        self.addCleanup(log.close)
        life = subprocess.Popen(self.command(world, "out", "--resume", "auto", "--save-every", str(SAVE_EVERY), steps=100_000),
                                cwd=self.folder, env=self.marked(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(life.wait)
        self.addCleanup(self.end_all)
        return life

    def newest_step(self):
        return max((int(path.name.removeprefix("step-")) for path in self.path("out").glob("step-*")), default=0)

    def unfinished(self):
        return [path.name for path in self.path("out").glob(".step-*.partial-*")]

    def wait_until(self, condition, seconds, what):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"{what}\n{self.path('log.txt').read_text()}\n{self.describe_processes()}")
            time.sleep(0.001)

    def describe_processes(self):
        return subprocess.run(["ps", "-o", "pid,ppid,stat,wchan:24,etimes,args", *(f"-p{pid}" for pid in self.processes())],
                              capture_output=True, text=True, check=False).stdout

    def strike(self, world, life):
        """Kills one of the processes, or all; who it was."""
        members = self.processes(parent=life.pid)  # and none that a launcher's death has left over
        choices = {"rank": members, "launcher": [life.pid], "all": [life.pid, *members]} if world > 1 else {"rank": [life.pid]}
        who = self.chance.choice([name for name, pids in choices.items() for _ in range(2 if name == "rank" else 1) if pids])
        victims = [self.chance.choice(choices[who])] if who == "rank" else choices[who]
        before = self.unfinished()
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if before or self.unfinished():
            self.counts["unfinished"] += 1
        self.counts[who] += 1
        return who

    def live_and_die(self, world, in_a_save=False):
        start = self.newest_step()
        life = self.begin(world)
        # A part of the lives ends while it starts, the others while they train and save.
        if not in_a_save and self.chance.random() < 0.25 and start > 0:
            time.sleep(self.chance.uniform(0, 0.6 if world > 1 else 0.3))
        else:
            self.wait_until(lambda: self.newest_step() > start or life.poll() is not None, END_WITHIN_S, "no progress")
            self.assertIsNone(life.poll(), f"ended by itself\n{self.path('log.txt').read_text()}")
            if in_a_save:
                self.wait_until(lambda: self.unfinished() or life.poll() is not None, END_WITHIN_S, "no save")
            else:
                time.sleep(self.chance.uniform(0, 0.15))
        who = self.strike(world, life)
        self.check_a_checkpoint_is_there()
        self.wait_until(lambda: life.poll() is not None, GONE_WITHIN_S, f"the launcher stays after {who} was killed")
        # The next life often begins while orphans of the last still train, and save.
        if who == "launcher" and self.chance.random() < 0.5:
            self.counts["overlapping"] += 1
            return
        self.wait_until(lambda: not self.processes(), GONE_WITHIN_S, f"left over after killing {who}: {self.processes()}")
        self.check_a_checkpoint_is_there()

    def check_a_checkpoint_is_there(self):
        """One of which every byte is right; older ones may be deleted meanwhile, by a rank that is not dead yet."""
        problems = []
        for _ in range(3):
            for path in sorted(self.path("out").glob("step-*"), reverse=True):
                done = subprocess.run([cli.SPILLWAY, "inspect", str(path)], capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    return
                problems.append(done.stderr)
        self.fail(f"no complete checkpoint among {os.listdir(self.path('out'))}: {problems}")

    def check_survives(self, world):
        for _ in range(KILLS[world]):
            self.live_and_die(world)
        # When saves are quick, few deaths fall into one by chance; then some more wait for one.
        for _ in range(2 * KILLS[world]):
            if self.counts["unfinished"] >= WITHIN_A_SAVE[world]:
                break
            self.live_and_die(world, in_a_save=True)
        self.wait_until(lambda: not self.processes(), GONE_WITHIN_S, "left over")
        steps = self.newest_step() + MORE_STEPS
        run = self.run_command(self.command(world, "out", "--resume", "auto", "--save-every", str(SAVE_EVERY), steps=steps), self.marked())
        self.assertEqual(run.status, 0, run.err)
        whole = self.run_command(self.command(world, "whole", steps=steps), self.marked())
        self.assertEqual(whole.status, 0, whole.err)
        survivor, reference = self.load("out/summary.json"), self.load("whole/summary.json")
        print(f"# world {world}: {steps} steps, {dict(self.counts)}", flush=True)
        self.assertEqual(survivor["state_hash"], reference["state_hash"])
        losses = [[(r["step"], r["loss"]) for r in self.metrics(f"{folder}/metrics.jsonl") if r["record"] == "step"] for folder in ("out", "whole")]
        self.assertEqual(losses[0], losses[1])

        self.assertEqual(self.processes(), [])
        self.assertEqual(os.listdir(self.path("swap")), [])
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["loss.svg", "metrics.jsonl", f"step-{steps - MORE_STEPS // 2 * 2 + 10:08}",
                                                               f"step-{steps:08}", "summary.json", "trace.json"])
        self.assertGreaterEqual(self.counts["unfinished"], WITHIN_A_SAVE[world], "too few deaths fell into a save")

    def test_survives_every_death(self):
        self.check_survives(int(sys.argv[2]))


tap.main()
