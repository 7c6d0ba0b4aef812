"""Several ranks as a user starts them: what they compute, print, move and hold, and how they refuse and end."""

import os
import re
import subprocess
import sys
import time

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, ranks, tap

COMMAND_LINE, DISK, COMM = 2, 5, 7
BATCH = 8
GRACE_S = 20


def world_of(world, stage=3, micro=2):
    """The same global batch for every number of ranks."""
    return {"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": BATCH // micro // world,
            "zero_optimization": {"stage": stage}}


class RanksOfOneRun(ranks.RanksTest):
    def setUp(self):
        super().setUp()
        self.path("swap").mkdir()

    def words(self, config, *more, steps=4, **inputs):
        return self.arguments("train", config, "--sequence-length", "16", *more, steps=steps, **inputs)

    def go(self, world, *changes, more=("--summary", "summary.json"), **inputs):
        """A run that has to end well."""
        run = self.run_ranks(world, self.words(self.config(*changes), *more, **inputs))
        self.assertEqual(run.status, 0, run.out + run.err)
        return run

    def summary(self, world, *changes, **inputs):
        self.go(world, *changes, **inputs)
        return self.load("summary.json")


class Results(RanksOfOneRun):
    def test_placement_changes_nothing(self):
        for stage in range(4):
            placements = [(None, None), (None, "cpu"), (None, "nvme")] + ([("nvme", "nvme"), ("cpu", "nvme")] if stage == 3 else [])
            found = {p: self.summary(2, world_of(2, stage), cli.offload(*p, "swap")) for p in placements}
            with self.subTest(stage=stage):
                self.assertEqual(len({s["state_hash"] for s in found.values()}), 1)
                self.assertEqual(len({s["loss_last"] for s in found.values()}), 1)
        self.assertEqual(os.listdir(self.path("swap")), [])

    def test_worlds_and_stages_learn_alike(self):
        curves = {}
        for world, stage in ((1, 3), (2, 1), (2, 3), (4, 0), (4, 2), (4, 3)):
            self.go(world, world_of(world, stage), more=("--metrics", "metrics.jsonl"), steps=20)
            curves[world, stage] = [r["loss"] for r in self.metrics() if r["record"] == "step"]
        alone = curves.pop((1, 3))
        self.assertLess(alone[-1], alone[0] - 0.5)
        for which, curve in curves.items():
            with self.subTest(which):
                self.assertEqual(len(curve), len(alone))
                for loss, expected in zip(curve, alone):
                    self.assertAlmostEqual(loss, expected, delta=1e-2)

    def test_however_ranks_are_started_they_compute_the_same(self):
        world = 2
        found = {"mpirun": self.summary(world, world_of(world))}
        as_torchrun = {"LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": self.mark,
                       "TORCHELASTIC_RESTART_COUNT": "0"}
        words = self.words(self.config(world_of(world)), "--summary", "summary.json")
        for launcher, environment in (("torchrun", as_torchrun), ("file", {"SPILLWAY_RENDEZVOUS": "ranks"})):
            self.path("summary.json").unlink()
            started = [subprocess.Popen(words, cwd=self.folder, env=self.marked(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), **environment),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                       for rank in range(world)]
            self.addCleanup(self.end_all)
            for process in started:
                _, errors = process.communicate(timeout=cli.TIMEOUT_S)
                self.assertEqual(process.returncode, 0, errors)
            found[launcher] = self.load("summary.json")
        for launcher, summary in found.items():
            with self.subTest(launcher):
                self.assertEqual(summary["state_hash"], found["mpirun"]["state_hash"])
                self.assertEqual([rank["sent_bytes"] for rank in summary["ranks"]], [rank["sent_bytes"] for rank in found["mpirun"]["ranks"]])
        self.assertFalse(self.path("ranks").exists())

    def test_what_is_frozen_stays_as_it_was(self):
        frozen = {"spillway": {"frozen": ["wte.weight", "h.0.*"]}}
        self.go(2, world_of(2), more=("--out", "few"), steps=1)
        trained = self.load("few/summary.json")
        for steps in (1, 3):
            self.go(2, world_of(2), frozen, more=("--out", f"frozen{steps}"), steps=steps)
        summary = self.load("frozen1/summary.json")
        self.assertLess(summary["ranks"][0]["sent_bytes"], trained["ranks"][0]["sent_bytes"])
        self.assertLess(summary["state_bytes"], trained["state_bytes"])
        differing = self.spillway("inspect", "frozen1", "--diff", "frozen3")
        self.assertIn("h.1.mlp.c_fc.weight", differing.out)
        self.assertNotIn("wte.weight ", differing.out)
        self.assertNotIn("h.0.", differing.out)
        # Saved all the same.
        self.assertIn("wte.weight", self.spillway("inspect", "frozen1").out)

    def test_a_group_smaller_than_the_world_shards_among_itself(self):
        grouped = {"zero_optimization": {"zero_hpz_partition_size": 2}}
        groups = [self.summary(4, world_of(4), cli.offload(None, device, "swap"), grouped) for device in (None, "nvme")]
        whole = self.summary(4, world_of(4))
        self.assertEqual(groups[0]["state_hash"], groups[1]["state_hash"])
        self.assertAlmostEqual(groups[0]["loss_last"], whole["loss_last"], delta=1e-2)
        # Half as many share, so each holds about twice as much.
        held = [summary["ranks"][0]["peak_bytes"]["device"] for summary in (groups[0], whole)]
        self.assertGreater(held[0], held[1])

    def test_uneven_evaluation_counts_every_token_once(self):
        self.write("eval.txt", cli.text(16 * 7 + 1, seed=3))
        found = []
        for world in (1, 2, 4):
            run = self.go(world, world_of(world, 0), more=("--eval-data", "eval.txt", "--summary", "summary.json"), steps=2)
            found.append((re.findall(r"eval loss \S+ over (\d+) tokens", run.out), self.load("summary.json")["eval_loss"]))
        for tokens, loss in found:
            self.assertEqual(tokens, [str(16 * 7)])
            self.assertAlmostEqual(loss, found[0][1], delta=1e-2)


class Figures(RanksOfOneRun):
    def test_each_rank_reports_what_was_planned(self):
        for world, stage in ((2, 3), (3, 2), (4, 1)):
            with self.subTest(world=world, stage=stage):
                config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}}
                summary = self.summary(world, config, cli.offload(None, "nvme", "swap"))
                self.assertEqual([r["rank"] for r in summary["ranks"]], list(range(world)))
                for rank in summary["ranks"]:
                    for tier in ("device", "host", "nvme"):
                        planned, peak = rank["planned_bytes"][tier], rank["peak_bytes"][tier]
                        self.assertGreater(planned, 0)
                        self.assertLessEqual(peak, planned)
                        self.assertGreaterEqual(peak, 0.98 * planned, tier)

    def test_bytes_sent_are_those_of_the_stage(self):
        """2 units of the 16-bit model at stages 0 and 1, A + 1 at stage 2, 3A at stage 3, each once to every other rank's part."""
        world, accumulation = 2, 2
        never_kept = {"zero_optimization": {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}}
        per_step = {}
        for stage in range(4):
            config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": accumulation, "zero_optimization": {"stage": stage}}
            sent = []
            for steps in (2, 5):
                summary = self.summary(world, config, never_kept, steps=steps)
                sent.append(sum(rank["sent_bytes"] for rank in summary["ranks"]))
            per_step[stage] = (sent[1] - sent[0]) / 3
        # Over both ranks, of a unit each sends the half that it has.
        unit = 2 * summary["params"] * (world - 1)
        head = 2 * 2 * 64 * (world - 1)  # its final norm, which forward and backward use once together
        self.assertEqual({stage: per_step[stage] for stage in range(4)},
                         {0: 2 * unit, 1: 2 * unit, 2: (accumulation + 1) * unit, 3: 3 * accumulation * unit - accumulation * head})

    def test_rank_0_alone_prints_and_writes(self):
        run = self.go(3, {"train_micro_batch_size_per_gpu": 2}, more=("--out", "run"), steps=3)
        for line in (r"model gpt2-tiny: .* x 3 ranks", r"ZeRO stage 3, 3 ranks share state", r"step 1/3 ", r"step 3/3 ", r"saved run/step-00000003: ", r"state hash "):
            self.assertEqual(len(re.findall(rf"(?m)^{line}", run.out)), 1, line)
        self.assertEqual(len(re.findall(r"(?m)^device: ", run.err)), 1)
        self.assertEqual(sorted(os.listdir(self.path("run"))), ["loss.svg", "metrics.jsonl", "step-00000003", "summary.json", "trace.json"])
        self.assertEqual([r["step"] for r in self.metrics("run/metrics.jsonl") if r["record"] == "step"], [1, 2, 3])


def said(run, pattern):
    """Lines of the program, not of mpirun."""
    return [line for line in run.err.splitlines() if re.search(pattern, line)]


class Refused(RanksOfOneRun):
    def check_refused(self, status, pattern, command):
        before = self.files()
        run = self.run_command(command, self.marked())
        self.assertEqual(run.status, status, run.err)
        self.assertEqual(len(said(run, pattern)), 1, run.err)
        self.assertEqual(len(said(run, "^spillway: |error: ")), 1, run.err)
        self.assert_same_files(before)

    def test_what_is_wrong_everywhere_is_said_once(self):
        config = self.config({"zero_optimization": {"stagee": 3}})
        self.check_refused(COMMAND_LINE, "^spillway: .*stagee: unknown key", [*ranks.mpirun(3), *self.words(config, "--out", "made")])
        config = self.config({"train_batch_size": 7})
        self.check_refused(COMMAND_LINE, "^spillway: .*train_batch_size", [*ranks.mpirun(2), *self.words(config, "--out", "made")])

    def apart(self, first, second):
        return [*ranks.mpirun(1), *first, ":", "-n", "1", *second]

    def test_ranks_that_were_started_differently(self):
        config, faster = self.config(), self.config({"optimizer": {"params": {"lr": 2e-3}}}, name="faster.json")
        alike = self.words(config, "--out", "made")
        for other, text in ((self.words(config, "--out", "made", steps=5), "rank 0 has --steps 4, rank 1 has --steps 5"),
                            (self.words(config), "rank 0 has --out made, rank 1 has --out (not given)"),
                            (self.words(faster, "--out", "made"), 'rank 0 has "lr": 0.001, rank 1 has "lr": 0.002')):
            with self.subTest(text):
                self.check_refused(COMMAND_LINE, "^spillway: the ranks were started differently: " + re.escape(text) + "; ", self.apart(alike, other))

    def test_one_rank_that_is_refused_is_named(self):
        config = self.config()
        self.check_refused(COMMAND_LINE, '^spillway: rank 1 on .*gpt2-tiy', self.apart(self.words(config, "--out", "made"),
                                                                                       self.words(config, "--out", "made", model="gpt2-tiy")))

    def test_torchrun_on_several_machines_is_told_the_command(self):
        run = self.run_command(self.words(self.config()), {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                                           "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"})
        self.assert_refused(run, COMM, "torchrun", "mpirun -n 4 spillway train")


class Faults(RanksOfOneRun):
    TIMEOUT_S = 3

    def endless(self, world, *changes):
        """A run that goes on until something happens to it."""
        config = self.config({"spillway": {"comm_timeout_s": self.TIMEOUT_S, "threads": 1}}, *changes)
        words = self.words(config, "--metrics", "metrics.jsonl", steps=100_000)
        job = subprocess.Popen([*ranks.mpirun(world), *words], cwd=self.folder, env=self.marked(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.stderr.close)
        self.addCleanup(job.wait)
        self.addCleanup(self.end_all)
        deadline = time.monotonic() + GRACE_S
        while not self.path("metrics.jsonl").exists() or len(self.path("metrics.jsonl").read_text().splitlines()) < 60:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return job

    def rank(self, job, number):
        for pid in self.processes(parent=job.pid):
            with open(f"/proc/{pid}/environ", "rb") as environment:
                if f"OMPI_COMM_WORLD_RANK={number}".encode() in environment.read().split(b"\0"):
                    return pid
        self.fail("it is not there")

    def check_named(self, job, victim, text, statuses):
        """By every other rank, once."""
        try:
            _, err = job.communicate(timeout=self.TIMEOUT_S + GRACE_S)
        except subprocess.TimeoutExpired:
            self.fail("the job hangs")
        self.assertIn(job.returncode, statuses, err)
        names = [line for line in err.splitlines() if re.search(rf"error: \[comm\] rank {victim} \(host \S+, pid \d+\) {text}", line)]
        self.assertEqual(len(names), 2, err)
        return err

    def test_a_rank_that_is_killed(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                self.path("metrics.jsonl").unlink(missing_ok=True)
                job = self.endless(3)
                os.kill(self.rank(job, victim), 9)
                # mpirun ends with what it saw first.
                err = self.check_named(job, victim, r"died; last heard at step \d+ in ", (COMM, 128 + 9))
                self.assertNotIn("spillway: ", err)

    def test_a_rank_that_is_stopped(self):
        job = self.endless(3)
        stopped = self.rank(job, 2)
        os.kill(stopped, 19)
        try:
            self.check_named(job, 2, rf"has not answered for {self.TIMEOUT_S} s; last heard at step \d+ in ", (COMM,))
        finally:
            self.end_all()

    def test_a_disk_that_fails_in_the_middle(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to mount a disk that can fail")
        for command in (["truncate", "-s", "64M", "image"], ["mkfs.ext4", "-q", "-F", "image"], ["mount", "-o", "loop", "image", "swap"]):
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self.skipTest(f"cannot mount here: {done.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", "swap"], cwd=self.folder, check=True)
        job = self.endless(2, cli.offload("nvme", "nvme", "swap"))
        # What was on it now reads as zeros.
        os.truncate(self.path("image"), 0)
        _, err = job.communicate(timeout=self.TIMEOUT_S + GRACE_S)
        self.assertIn(job.returncode, (DISK, COMM), err)
        self.assertRegex(err, r"(?m)^spillway: \[nvme\] ")


tap.main()
