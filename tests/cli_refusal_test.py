"""What cannot work is refused: with its own text, last on stderr, its own exit status, and nothing left behind."""

import contextlib
import json
import os
import subprocess
import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, tap

COMMAND_LINE, DATA, MEMORY, DISK, DEVICE = 2, 3, 4, 5, 6


class Refusal(cli.CliTest):
    def refused(self, status, config, *more, words, env=None, **inputs):
        """Refused by train; nothing written, the --out folder included."""
        before = self.files()
        run = self.run_command(self.arguments("train", config, "--out", "made/for/it", *more, **inputs), env)
        self.assert_refused(run, status, *words)
        self.assert_same_files(before)
        return run


class CommandLine(Refusal):
    def test_says_what_was_not_understood(self):
        config = self.config()
        for arguments, words in {
            (): ("no command", "train, plan, inspect, export, doctor or tune", "spillway --help"),
            ("tarin",): ("unknown command 'tarin'", '"train"'),
            ("train", "--stepz", "3"): ("unknown option '--stepz'", '"--steps"', "spillway train --help"),
            ("plan", "--jsno"): ("unknown option '--jsno'", '"--json"', "spillway plan --help"),
            ("train", "--config", config, "more"): ("unknown argument 'more'",),
            ("train", "--config", config, "--steps", "3"): ("train needs --model and --data",),
            ("train", "--steps", "0"): ("--steps: '0' is not a whole number of at least 1",),
            ("train", "--steps", "many"): ("--steps: 'many' is not a whole number",),
            ("train", "--device", "tpu"): ("--device", "tpu", "host"),
        }.items():
            with self.subTest(" ".join(arguments)):
                run = self.spillway(*arguments)
                self.assert_refused(run, COMMAND_LINE, *words)
                self.assertEqual(len(run.err.splitlines()), 1)

    def test_unknown_model_preset(self):
        self.refused(COMMAND_LINE, self.config(), model="gpt2-tiy", words=("gpt2-tiy", 'did you mean "gpt2-tiny"', "gpt2-xl"))

    def test_sequence_longer_than_the_context(self):
        self.refused(COMMAND_LINE, self.config(), "--sequence-length", "129", words=("--sequence-length 129", "gpt2-tiny", "at most 128"))

    def test_one_of_several_swap_folders_is_missing(self):
        for section in ("offload_param", "offload_optimizer"):
            config = self.config(cli.offload("nvme", "nvme"), {"zero_optimization": {section: {"nvme_path": [".", "elsewhere"]}}})
            self.refused(DISK, config, words=("(elsewhere)", "No such file", "nvme_path"))

    def test_more_memory_than_the_machine_has(self):
        self.refused(MEMORY, self.config({"spillway": {"device_memory": "100TiB"}}), words=("[memory]", "device arena", "nothing was started"))

    def test_cuda_without_cuda(self):
        if "host, cuda" in self.spillway("--version").out:
            self.skipTest("this machine has a CUDA device")
        self.refused(DEVICE, self.config(), "--device", "cuda", words=("cuda", "--device host"))

    def test_instruction_set_that_is_none(self):
        self.refused(COMMAND_LINE, self.config(cli.offload(optimizer="cpu")), env={"SPILLWAY_ISA": "sse9"}, words=("SPILLWAY_ISA", '"sse9"', "scalar"))

    def test_outputs_that_cannot_be_written(self):
        config = self.config()
        self.write("file", "")
        for more, words in {
            ("--out", "file"): ("'file'", "--out"),
            ("--out", "/proc/none"): ("'/proc/none'", "--out"),
            ("--summary", "none/summary.json"): ("none/summary.json", "'none' does not exist", "--summary"),
            ("--metrics", "."): ("'.'", "is a folder", "--metrics"),
            ("--trace", "/proc/none/trace.json"): ("/proc/none/trace.json", "--trace"),
            ("--curve", "none/curve.svg"): ("none/curve.svg", "--curve"),
        }.items():
            with self.subTest(more):
                before = self.files()
                run = self.run_command(self.arguments("train", config, *more))
                self.assert_refused(run, DISK, *words)
                self.assertNotIn("step 1/", run.out, "refused after training")
                self.assert_same_files(before)

    def test_a_folder_without_permission_to_write(self):
        if os.geteuid() == 0:
            prefix = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
            if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode != 0:
                self.skipTest("root cannot give up its capabilities here")
        else:
            prefix = []
        self.path("locked").mkdir(mode=0o555)
        config = self.config()
        run = self.run_command([*prefix, *self.arguments("train", config, "--out", "locked/run")])
        self.assert_refused(run, DISK, "locked/run", "Permission denied", "--out")


class Configuration(Refusal):
    def test_files_that_are_none(self):
        self.write("empty.json", "")
        self.write("binary.json", bytes(range(256)))
        self.write("truncated.json", self.path(self.config()).read_text()[:100])
        for config, words in {
            "missing.json": ("missing.json", "No such file"),
            "empty.json": ("empty.json", "empty"),
            "binary.json": ("binary.json", "not a text file"),
            "truncated.json": ("truncated.json:", "not valid JSON", "unexpected end"),
            ".": ("file .", "folder"),
        }.items():
            with self.subTest(config):
                self.refused(COMMAND_LINE, config, words=words)

    def test_unknown_keys_are_told_with_path_and_suggestion(self):
        for change, words in (({"schedular": {}}, ("schedular", 'did you mean "scheduler"')),
                              ({"zero_optimization": {"offload_optimiser": {"device": "cpu"}}},
                               ("zero_optimization.offload_optimiser", '"offload_optimizer"')),
                              ({"spillway": {"prefetch_dept": 2}}, ("spillway.prefetch_dept", '"prefetch_depth"'))):
            with self.subTest(words[0]):
                self.refused(COMMAND_LINE, self.config(change), words=("config.json:", *words))

    def test_values_out_of_range(self):
        for change, words in (({"spillway": {"tile_size": 0}}, ("spillway.tile_size",)),
                              ({"spillway": {"device_memory": "48 apples"}}, ("spillway.device_memory", "48 apples")),
                              ({"spillway": {"io_engine": "magic"}}, ("spillway.io_engine", "io_uring")),
                              ({"train_batch_size": 7}, ("train_batch_size", "7")),
                              ({"optimizer": {"type": "Lamb"}}, ("optimizer.type", "Lamb", "AdamW")),
                              ({"optimizer": {"type": "Lion", "params": {"eps": 1e-6}}}, ("optimizer.params.eps", "Lion", "betas")),
                              ({"fp16": {"enabled": True}}, ("fp16", "bf16"))):
            with self.subTest(words[0]):
                self.refused(COMMAND_LINE, self.config(change), words=words)

    def test_model_files_that_are_none(self):
        self.write("empty.json", "")
        self.write("list.json", "[1]")
        self.write("odd.json", json.dumps({"n_layer": 1, "n_head": 3, "n_embd": 32, "n_positions": 64, "vocab_size": 256}))
        for model, words in {"missing.json": ("model", "missing.json", "No such file"), "./empty.json": ("empty.json", "empty"),
                             "./list.json": ("list.json", "object"), "./odd.json": ('model "odd"', "heads (3)")}.items():
            with self.subTest(model):
                self.refused(COMMAND_LINE, self.config(), model=model, words=words)


class Data(Refusal):
    def test_files_that_are_none(self):
        tokens = b"".join(i.to_bytes(2, "little") for i in range(256))
        header = b"".join(n.to_bytes(4, "little") for n in (20240520, 1, 100_000, *[0] * 253))
        self.write("empty.txt", "")
        self.write("binary.txt", b"text\0text" * 1000)
        self.write("empty.bin", b"")
        self.write("odd.bin", tokens + b"x")
        self.write("truncated.bin", header + tokens)
        self.write("large.bin", (50_000).to_bytes(2, "little") * 1000)
        self.write("short.txt", "too short")
        for data, words in {
            "missing.txt": ("'missing.txt'", "No such file"),
            "empty.txt": ("'empty.txt'", "empty"),
            "empty.bin": ("'empty.bin'", "empty"),
            "binary.txt": ("'binary.txt'", "binary", ".bin"),
            "odd.bin": ("'odd.bin'", "whole number of uint16"),
            "truncated.bin": ("'truncated.bin'", "truncated", "100000"),
            "large.bin": ("'large.bin'", "50000", "256"),
            ".": ("'.'", "directory"),
            "short.txt": ("'short.txt'", "9 tokens", "129"),
        }.items():
            with self.subTest(data):
                self.refused(DATA, self.config(), data=[data], words=words)

    def test_held_out_data_is_looked_at_before_the_run(self):
        run = self.refused(DATA, self.config(), "--eval-data", "missing.txt", words=("'missing.txt'", "No such file"))
        self.assertNotIn("step 1/", run.out)


class Budget(Refusal):
    PLACEMENT = cli.merged(cli.offload(optimizer="nvme"), {"spillway": {"tile_size": 65536}})

    def test_a_byte_too_small_is_refused_and_the_need_fits(self):
        needs = {tier: use["peak"] for tier, use in self.plan(self.config(self.PLACEMENT))["tiers"].items()}
        for tier, need in needs.items():
            with self.subTest(tier):
                exact = self.config(self.PLACEMENT, {"spillway": {f"{tier}_memory": need}})
                self.assertEqual(self.train(exact)["peak"][tier], {"used": need, "budget": need})
                self.path("summary.json").unlink()
                small = self.config(self.PLACEMENT, {"spillway": {f"{tier}_memory": need - 1}})
                self.refused(MEMORY, small, words=(f"({need - 1} B): 1 B too small", "device", "host", "nvme", "optimizer state",
                                                   f"spillway.{tier}_memory: {need}", "nothing was started"))
                self.assert_refused(self.run_command(self.arguments("plan", small)), MEMORY, "1 B too small")

    def test_every_proposed_change_makes_it_fit(self):
        # Each proposal of the refusal, as the change a user would make.
        changes = {
            'offload_optimizer.device: "cpu"': cli.offload(optimizer="cpu"),
            'offload_optimizer.device: "nvme"': cli.offload(optimizer="nvme"),
            'offload_param.device: "cpu"': cli.offload(param="cpu"),
            'offload_param.device: "nvme"': cli.offload(param="nvme"),
            'offload_activations: "nvme"': {"spillway": {"offload_activations": "nvme", "nvme_path": "."}},
            'offload_gradients: "nvme"': {"spillway": {"offload_gradients": "nvme", "nvme_path": "."}},
            "cpu_checkpointing: true": {"activation_checkpointing": {"cpu_checkpointing": True}},
            "train_micro_batch_size_per_gpu: 1 with gradient_accumulation_steps: 2": {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2},
            "spillway.tile_size: 1048576": {"spillway": {"tile_size": 1048576}},
            "spillway.tile_size: 65536": {"spillway": {"tile_size": 65536}},
            "spillway.prefetch_depth: 1": {"spillway": {"prefetch_depth": 1}},
        }
        tried = set()
        for base in ({}, cli.offload("cpu", "cpu"), cli.merged(cli.offload("cpu", "nvme"), {"spillway": {"tile_size": "4Mi"}})):
            needs = {tier: use["peak"] for tier, use in self.plan(self.config(base))["tiers"].items() if use["peak"]}
            for tier, need in needs.items():
                for budget in (need - 1, need * 3 // 4):
                    start = [base, {"spillway": {f"{tier}_memory": budget}}]
                    error = self.refused(MEMORY, self.config(*start), words=("any one of these fits",)).err
                    for proposal in error.partition("any one of these fits:\n")[2].splitlines():
                        with self.subTest(base=base, tier=tier, budget=budget, proposal=proposal):
                            applied = [change for words, change in changes.items() if words in proposal]
                            if f"spillway.{tier}_memory: {need}" in proposal:
                                applied.append({"spillway": {f"{tier}_memory": need}})
                            self.assertTrue(applied, "a proposal nobody can apply")
                            self.assertTrue(all(use["fits"] for use in self.plan(self.config(*start, *applied))["tiers"].values()))
                            tried.add(proposal.strip(" -").partition(":")[0])
        self.assertGreaterEqual(len(tried), 4, tried)

    def test_a_proposed_change_trains(self):
        need = self.plan(self.config())["tiers"]["device"]["peak"]
        small = {"spillway": {"device_memory": need - 1}}
        self.refused(MEMORY, self.config(small), words=('zero_optimization.offload_optimizer.device: "cpu"',))
        self.assertEqual(self.train(self.config(small, cli.offload(optimizer="cpu")))["state_hash"], self.train(self.config())["state_hash"])


class FullDisk(Refusal):
    SHAPE = {"n_layer": 4, "n_head": 4, "n_embd": 256, "n_positions": 64, "vocab_size": 256}  # 45 MiB of state

    @contextlib.contextmanager
    def mounted(self, *commands):
        if os.geteuid() != 0:
            self.skipTest("needs root, to mount a small file system")
        self.path("disk").mkdir()
        for command in commands:
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self.skipTest(f"cannot mount here: {done.stderr.strip()}")
        try:
            yield self.path("disk")
        finally:
            subprocess.run(["umount", "--lazy", "disk"], cwd=self.folder, check=True)

    def check_full(self, disk):
        self.write("shape.json", json.dumps(self.SHAPE))
        free = os.statvfs(disk).f_bfree
        # By the plan, whose budget is what is free.
        self.refused(MEMORY, self.config(cli.offload("cpu", "nvme", "disk")), model="./shape.json", words=("nvme", "too small", "spillway.nvme_memory"))
        # And by the disk, should the budget say otherwise.
        config = self.config(cli.offload("cpu", "nvme", "disk"), {"spillway": {"nvme_memory": "1GiB"}})
        self.refused(DISK, config, model="./shape.json", words=("[nvme]", "(disk)", "No space left on device", "needs 3", "MiB free"))
        self.assertEqual(os.statvfs(disk).f_bfree, free, "space was not given back")

    def test_tmpfs_of_16_mib(self):
        with self.mounted(["mount", "-t", "tmpfs", "-o", "size=16m", "none", "disk"]) as disk:
            self.check_full(disk)

    def test_loop_ext4_of_32_mib(self):
        with self.mounted(["truncate", "-s", "32M", "image"], ["mkfs.ext4", "-q", "-F", "image"], ["mount", "-o", "loop", "image", "disk"]) as disk:
            self.check_full(disk)

    def test_a_folder_that_does_not_exist(self):
        self.refused(DISK, self.config(cli.offload(optimizer="nvme", path="none")), words=("[nvme]", "(none)", "No such file", "nvme_path"))


tap.main()
