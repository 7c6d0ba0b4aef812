"""Saving and going on, as a user does it: at another world, stage and placement, after signals, on a disk that is full,
and from checkpoints that are damaged or of something else.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, ranks, tap

COMMAND_LINE, DISK, COMM = 2, 5, 7
DEADLINE_S = 60
MIB = 1 << 20
# Once mpirun is told to end it waits for so long, tells the ranks, and kills them as long after that. The default is a
# second, which is little for a checkpoint.
PATIENT = ("--mca", "odls_base_sigkill_timeout", "2")
# Any of the worlds here divides it.
BATCH = {"train_batch_size": 120, "gradient_accumulation_steps": 1, "train_micro_batch_size_per_gpu": "auto"}
NAME = "step-{:08}"


class Resume(ranks.RanksTest):
    def setUp(self):
        super().setUp()
        self.path("swap").mkdir()

    def go(self, config, *more, world=1, steps, model="gpt2-tiny", data=("text.txt",)):
        """A run, whatever becomes of it. Short samples: what is tested here does not depend on them."""
        words = self.arguments("train", config, "--sequence-length", "16", *more, model=model, data=data, steps=steps)
        return self.run_ranks(world, words) if world > 1 else self.run_command(words)

    def done(self, config, *more, **inputs):
        run = self.go(config, *more, **inputs)
        self.assertEqual(run.status, 0, run.out + run.err)
        return run

    def saved(self, folder):
        return sorted(name for name in os.listdir(self.path(folder)) if name.startswith("step-"))

    def steps_and_losses(self, folder):
        return [(r["step"], r["loss"]) for r in self.metrics(f"{folder}/metrics.jsonl") if r["record"] == "step"]

    def wait_until(self, condition):
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def contents(self, folder):
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in self.path(folder).rglob("*") if path.is_file()}


class AnyWorld(Resume):
    def test_any_world_stage_and_placement_loads_the_state_that_was_saved(self):
        self.done(self.config(BATCH, cli.offload("nvme", "nvme", "swap")), "--out", "four", world=4, steps=2)
        state = self.load("four/summary.json")["state_hash"]
        for world, stage, placement in ((1, 0, (None, None)), (2, 1, (None, "cpu")), (3, 2, (None, "nvme")), (5, 3, (None, None)), (8, 3, ("cpu", "nvme"))):
            with self.subTest(world=world, stage=stage):
                config = self.config(BATCH, cli.offload(*placement, "swap"), {"zero_optimization": {"stage": stage}})
                run = self.done(config, "--resume", "four", "--summary", "summary.json", world=world, steps=3)
                self.assertEqual(re.findall(r"(?m)^resumed from (.*), saved after step 2 by 4 ranks; state (.*)$", run.out),
                                 [(f"four/{NAME.format(2)}", state)])
                summary = self.load("summary.json")
                self.assertEqual((summary["first_step"], summary["steps"]), (3, 1))

    def check_goes_on_as_if_nothing_had_happened(self, config, world):
        self.done(config, "--out", "whole", world=world, steps=7)
        self.done(config, "--out", "parts", world=world, steps=4)
        self.done(config, "--out", "parts", "--resume", "auto", world=world, steps=7)
        whole, parts = self.load("whole/summary.json"), self.load("parts/summary.json")
        self.assertEqual(parts["state_hash"], whole["state_hash"])
        # Also the data and the metrics go on where they were.
        self.assertEqual(self.steps_and_losses("parts"), self.steps_and_losses("whole"))
        return whole, parts

    def test_resumed_alike_it_is_the_uninterrupted_run(self):
        for world, placement in ((1, ("nvme", "nvme")), (3, ("cpu", "nvme"))):
            with self.subTest(world=world):
                config = self.config(BATCH, cli.offload(*placement, "swap"), {"zero_optimization": {"stage": 3}})
                self.check_goes_on_as_if_nothing_had_happened(config, world)
                shutil.rmtree(self.path("whole"))
                shutil.rmtree(self.path("parts"))

    def test_so_it_is_with_moments_of_8_bits(self):
        config = self.config(BATCH, cli.offload("nvme", "nvme", "swap"), {"optimizer": {"type": "Lion"}, "spillway": {"moments": "8bit"}})
        whole, _ = self.check_goes_on_as_if_nothing_had_happened(config, 3)
        self.assertEqual(whole["optimizer"], {"kind": "lion", "moments": "8bit", "state_bytes_per_parameter": 5 + 1 / 256})

    def test_the_loss_scaler_goes_on(self):
        # A scale that overflows at first: steps are skipped before the save, and after it.
        config = self.config({"bf16": {"enabled": False}, "fp16": {"enabled": True, "initial_scale_power": 24, "hysteresis": 1}})
        whole, _ = self.check_goes_on_as_if_nothing_had_happened(config, 1)
        self.assertGreater(whole["skipped_steps"], 0)
        scales = [[r["loss_scale"] for r in self.metrics(f"{folder}/metrics.jsonl") if r["record"] == "step"] for folder in ("whole", "parts")]
        self.assertEqual(scales[0], scales[1])
        self.assertGreater(len(set(scales[0])), 1)

    def test_resuming_takes_no_more_memory_than_training(self):
        config = self.config(cli.offload("nvme", "nvme", "swap"), {"spillway": {"tile_size": 1 << 20}})
        self.done(config, "--out", "run", "--save-every", "1", model="gpt2-10m", steps=2)
        fresh = self.load("run/summary.json")
        self.done(config, "--out", "run", "--save-every", "1", "--resume", "auto", model="gpt2-10m", steps=3)
        resumed = self.load("run/summary.json")
        self.assertGreater(fresh["state_bytes"], 100 * MIB)
        self.assertLess(resumed["rss_peak"], fresh["rss_peak"] + 8 * MIB)


class Saving(Resume):
    def test_the_newest_are_kept(self):
        config = self.config()
        for keep, kept in ((1, [7]), (2, [6, 7]), (0, [2, 4, 6, 7])):
            with self.subTest(keep=keep):
                self.done(config, "--out", f"keep{keep}", "--save-every", "2", "--keep", str(keep), steps=7)
                self.assertEqual(self.saved(f"keep{keep}"), [NAME.format(step) for step in kept])

    def test_auto_starts_afresh_where_nothing_is(self):
        run = self.done(self.config(), "--out", "new", "--resume", "auto", steps=2)
        self.assertIn("--resume auto: no complete checkpoint under 'new'; starting afresh\n", run.err)
        self.assertEqual(self.saved("new"), [NAME.format(2)])

    def start(self, *more, world=1):
        config = self.config({"steps_per_print": 10, "spillway": {"threads": 1}})
        words = self.arguments("train", config, "--sequence-length", "16", *more, steps=100_000)
        if world > 1:
            words = [*ranks.mpirun(world, *PATIENT), *words]
        process = subprocess.Popen(words, cwd=self.folder, env=self.marked(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(self.end_all)
        return process

    def read_until(self, process, pattern):
        """The match; what was read before is lost."""
        read = ""
        for line in process.stdout:
            read += line
            found = re.match(pattern, line)
            if found:
                return found
        self.fail(f"ended before {pattern}: {read[-3000:]}")

    def check_signals(self, world, status, receiver=None):
        """What the process started gets, or another one that it is asked for."""
        process = self.start("--out", "run", "--keep", "0", world=world)
        self.read_until(process, r"step +1/")
        target = receiver(process) if receiver else process.pid
        os.kill(target, signal.SIGUSR1)
        asked = int(self.read_until(process, r"saved run/step-(\d+):").group(1))
        self.read_until(process, r"step +\d+/")
        os.kill(target, signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, status)
        self.wait_until(lambda: not self.processes())
        ended = self.load("run/summary.json")["steps"]
        self.assertEqual(self.saved("run"), [NAME.format(asked), NAME.format(ended)])
        run = self.done(self.config({"spillway": {"threads": 1}}), "--out", "run", "--resume", "auto", world=world, steps=ended + 1)
        self.assertIn(f"resumed from run/{NAME.format(ended)},", run.out)

    def test_a_signal_saves_and_another_one_saves_and_ends(self):
        self.check_signals(1, 128 + signal.SIGTERM)

    def test_mpirun_hands_signals_on(self):
        # It ends with a status of its own: that it was told to end.
        self.check_signals(2, 1)

    def test_a_signal_to_one_rank_is_one_to_all(self):
        self.check_signals(3, 128 + signal.SIGTERM, lambda launcher: self.processes(parent=launcher.pid)[-1])

    def test_output_that_nobody_reads_ends_the_run_as_a_signal_does(self):
        process = self.start("--out", "run")
        self.read_until(process, r"step +1/")
        process.stdout.close()
        self.assertEqual(process.wait(timeout=DEADLINE_S), 128 + signal.SIGPIPE)
        self.assertEqual(self.saved("run"), [NAME.format(self.load("run/summary.json")["steps"])])

    def test_usr1_without_out_is_answered(self):
        process = self.start()
        self.read_until(process, r"step +1/")
        process.send_signal(signal.SIGUSR1)
        self.read_until(process, "warning: a checkpoint was asked for, but there is no --out")


class Refused(Resume):
    def setUp(self):
        super().setUp()
        self.settings = self.config()
        self.done(self.settings, "--out", "run", "--save-every", "2", "--keep", "0", steps=4)
        self.newest = f"run/{NAME.format(4)}"
        self.shard = f"{self.newest}/state-00001-of-00001.safetensors"

    def refused(self, status, *words, config=None, resume=None, more=(), steps=6, model="gpt2-tiny", world=1):
        before = self.contents("run")
        run = self.go(config or self.settings, "--resume", resume or self.newest, *(more or ("--out", "run")), model=model, steps=steps, world=world)
        self.assertEqual(before, self.contents("run"), "something was overwritten")
        if world == 1:
            self.assert_refused(run, status, *words)
        return run

    def test_another_model(self):
        self.refused(DISK, self.newest, "channels is 64 in the checkpoint and 128 in this run", model=self.write("wide.json", self.shape()))

    def shape(self):
        return '{"name": "wide", "n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 128, "vocab_size": 256}'

    def test_another_dtype(self):
        config = self.config({"bf16": {"enabled": False}, "fp16": {"enabled": True}})
        self.refused(DISK, self.newest, "bf16", "fp16", config=config)

    def test_another_optimizer(self):
        config = self.config({"optimizer": {"type": "Lion"}, "spillway": {"moments": "bf16"}})
        self.refused(DISK, self.newest, "its state is that of adam with fp32 moments, this run's would be that of lion with bf16 moments", config=config)

    def test_fewer_steps_than_were_taken(self):
        self.refused(COMMAND_LINE, "--steps 3", "4 steps", steps=3)

    def test_as_many_steps_as_were_taken_is_nothing_to_do(self):
        before = self.contents(self.newest)
        run = self.done(self.settings, "--out", "run", "--resume", "auto", steps=4)
        self.assertNotIn("saved run/", run.out)
        self.assertEqual(before, self.contents(self.newest))

    def test_nothing_there(self):
        self.refused(DISK, "'nowhere'", "manifest.json", "step-NNNNNNNN", resume="nowhere")

    def test_half_written(self):
        os.mkdir(self.path("half"))
        shutil.copytree(self.path(self.newest), self.path("half/.step-00000004.partial-0123456789abcdef"))
        run = self.refused(DISK, "'half'", resume="half")
        self.assertIn("half/.step-00000004.partial-0123456789abcdef is passed over: it was not finished", run.err)

    def test_a_manifest_that_is_missing(self):
        os.remove(self.path(f"{self.newest}/manifest.json"))
        self.refused(DISK, self.newest, "manifest.json")

    def test_a_manifest_that_was_altered(self):
        path = self.path(f"{self.newest}/manifest.json")
        path.write_text(path.read_text().replace('"step": 4', '"step": 5').replace('"step":4', '"step":5'))
        self.refused(DISK, f"{self.newest}/manifest.json", "checksum")

    def test_a_manifest_that_is_cut(self):
        path = self.path(f"{self.newest}/manifest.json")
        path.write_text(path.read_text()[:1000])
        self.refused(DISK, f"{self.newest}/manifest.json")

    def test_a_shard_that_is_missing(self):
        os.remove(self.path(self.shard))
        self.refused(DISK, self.shard)

    def test_a_shard_that_is_cut(self):
        os.truncate(self.path(self.shard), self.path(self.shard).stat().st_size - 1)
        self.refused(DISK, self.shard, "bytes")

    def test_a_bit_that_has_flipped(self):
        self.flip(self.shard, self.path(self.shard).stat().st_size // 2)
        for world in (1, 2):
            with self.subTest(world=world):
                run = self.refused(DISK, self.shard, "checksum", world=world)
                # mpirun's is that of whoever is first to end: the rank that read it, or one that heard of it.
                self.assertIn(run.status, (DISK, COMM) if world > 1 else (DISK,), run.err)
                self.assertIn("its checksum is", run.err)

    def test_auto_passes_over_what_is_damaged(self):
        os.remove(self.path(self.shard))
        run = self.done(self.settings, "--out", "run", "--resume", "auto", steps=6)
        self.assertIn(f"warning: {self.newest} is passed over: ", run.err)
        self.assertIn(f"resumed from run/{NAME.format(2)},", run.out)

    def test_other_data_is_warned_of(self):
        self.write("other.txt", cli.text(30_000, seed=2))
        run = self.done(self.settings, "--out", "run", "--resume", "auto", data=("other.txt",), steps=5)
        self.assertIn("warning: the checkpoint was made with ", run.err)
        self.assertIn("the data starts at its beginning", run.err)

    def test_auto_without_out(self):
        self.refused(COMMAND_LINE, "--resume auto", "--out", resume="auto", more=("--seed", "3"))

    def test_out_that_is_held_by_another_run(self):
        holder = subprocess.Popen(self.arguments("train", self.settings, "--out", "held", steps=100_000), cwd=self.folder,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        next(line for line in holder.stdout if line.startswith("step "))
        self.refused(DISK, "[out] write to 'held': another run is writing there", "fuser", more=("--out", "held"))


class Mounted(Resume):
    def mount(self, *command):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if os.geteuid() != 0 or done.returncode != 0:
            self.skipTest(f"cannot mount here: {done.stderr.strip()}")

    def test_out_that_is_read_only(self):
        self.done(self.config(), "--out", "run", steps=2)
        self.path("readonly").mkdir()
        self.mount("mount", "--bind", "run", "readonly")
        self.addCleanup(subprocess.run, ["umount", "--lazy", "readonly"], cwd=self.folder, check=True)
        self.mount("mount", "-o", "remount,ro,bind", "readonly")
        before = self.contents("run")
        run = self.go(self.config(), "--out", "readonly", "--resume", "auto", steps=4)
        self.assert_refused(run, DISK, "readonly", "Read-only file system")
        self.assertEqual(before, self.contents("run"))

    def small_disk(self):
        """With room for one checkpoint of the tiny model, and not for two."""
        self.path("disk").mkdir()
        for command in (["truncate", "-s", "24M", "image"], ["mkfs.ext4", "-q", "-F", "image"], ["mount", "-o", "loop", "image", "disk"]):
            self.mount(*command)
        self.addCleanup(subprocess.run, ["umount", "--lazy", "disk"], cwd=self.folder, check=True)
        file_system = os.statvfs(self.path("disk"))
        with open(self.path("disk/filler"), "wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, file_system.f_bfree * file_system.f_bsize - 5 * MIB)

    def check_intact(self, step):
        self.assertEqual(self.saved("disk/run"), [NAME.format(step)])
        self.assertEqual([name for name in os.listdir(self.path("disk/run")) if name.startswith(".")], [])
        self.assertEqual(self.spillway("inspect", f"disk/run/{NAME.format(step)}").status, 0)

    def test_a_full_disk_and_a_run_that_is_to_go_on(self):
        self.small_disk()
        for world in (1, 2):
            with self.subTest(world=world):
                shutil.rmtree(self.path("disk/run"), ignore_errors=True)
                run = self.go(self.config(), "--out", "disk/run", "--save-every", "2", world=world, steps=7)
                # The last state could not be saved.
                self.assertEqual(run.status, DISK, run.err)
                self.assertRegex(run.out, r"(?m)^step +7/7 ")
                self.assertEqual(re.findall(r"(?m)^error: the checkpoint of step (\d+) was not written: ", run.err), ["4", "6", "7"])
                self.check_intact(2)
                saves = self.load("disk/run/summary.json")["saves"]
                self.assertEqual([save["error"] is None for save in saves], [True, False, False, False])

    def test_a_full_disk_that_has_room_again(self):
        self.small_disk()
        process = subprocess.Popen(self.arguments("train", self.config(), "--out", "disk/run", "--save-every", "2", steps=100_000),
                                   cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        next(line for line in process.stderr if "was not written" in line)
        os.remove(self.path("disk/filler"))
        self.wait_until(lambda: len(self.saved("disk/run")) == 2)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
        # The last save is what counts.
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, err)

    def test_a_disk_without_room_for_a_line_of_metrics(self):
        self.small_disk()
        process = subprocess.Popen(self.arguments("train", self.config(), "--out", "disk/run", steps=100_000), cwd=self.folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_until(lambda: self.path("disk/run/metrics.jsonl").exists())
        try:
            with open(self.path("disk/more"), "wb") as more:
                while True:
                    more.write(bytes(4096))
                    more.flush()
        except OSError:
            pass  # full
        self.assertIn("training goes on", next(line for line in process.stderr if "metrics.jsonl" in line))
        os.remove(self.path("disk/filler"))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, err)
        self.assertEqual(err.count("metrics.jsonl"), 0, err)
        self.check_intact(self.load("disk/run/summary.json")["steps"])
        self.metrics("disk/run/metrics.jsonl")

    def test_a_full_disk_and_a_run_that_is_to_stop(self):
        self.small_disk()
        run = self.go(self.config(), "--out", "disk/run", "--save-every", "2", "--on-save-error", "stop", steps=100_000)
        self.assert_refused(run, DISK, "No space left on device", "disk/run")
        self.assertEqual(re.findall(r"(?m)^error: the checkpoint of step (\d+) was not written: ", run.err), ["4"])
        self.check_intact(2)
        self.assertLessEqual(self.load("disk/run/summary.json")["steps"], 8)


tap.main()
