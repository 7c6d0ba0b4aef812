"""Checkpoints from the command line: what inspect says, what it finds, and what export hands over."""

import json
import os
import struct
import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, tap


def tensors_of(path):
    """Names, dtypes and shapes of a safetensors file, by its public layout."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()}


class Checkpoint(cli.CliTest):
    def setUp(self):
        super().setUp()
        self.summary = self.train(self.config(), "--out", "run", "--save-every", "2", "--keep", "0", steps=5)

    def test_every_save_is_in_the_summary_and_on_the_disk(self):
        self.assertEqual([save["step"] for save in self.summary["saves"]], [2, 4, 5])
        self.assertEqual(self.summary["saves"][-1]["state_hash"], self.summary["state_hash"])
        self.assertEqual(sorted(name for name in os.listdir(self.path("run")) if name.startswith("step-")),
                         ["step-00000002", "step-00000004", "step-00000005"])

    def test_memory_for_saving_follows_from_how_long_a_step_gives_the_disk(self):
        # 2.6 MB of state. An endless step leaves the disk time for all of it; a step of a few ms, on a disk that cannot
        # write the half of it meanwhile, for nearly none.
        def memory(out, profile, **spillway):
            self.write("rates.json", json.dumps(profile))
            config = self.config({"spillway": {"profile": "rates.json", **spillway}}, name="sized.json")
            run = self.run_command(self.arguments("train", config, "--out", out, "--save-every", "1"))
            self.assertEqual(run.status, 0, run.err)
            return run.err, self.load(f"{out}/summary.json")["peak"]["host"]["used"]

        slow, least = memory("slow", {"matmul_flops": 1e6})
        self.assertIn("[checkpoint] 384.0 KiB of host memory to copy", slow)
        self.assertNotIn("does not fit", slow)
        fast = {"matmul_flops": 1e18, "device_bytes": 1e18, "cpu_adam_bytes": 1e18, "h2d_bytes": 1e18, "d2h_bytes": 1e18, "task_overhead_s": 0}
        said, most = memory("fast", fast)
        self.assertIn("[checkpoint]", said)
        self.assertGreater(most, least)
        said, given = memory("given", fast, checkpoint_memory="384KiB")
        self.assertNotIn("[checkpoint]", said)
        self.assertEqual(given, least)
        said, capped = memory("capped", fast, host_memory=least + 4096)
        self.assertIn("more does not fit", said)
        self.assertEqual(capped, least)

    def test_inspect_tells_what_is_inside_and_verifies_it(self):
        run = self.spillway("inspect", "run")
        self.assertEqual((run.status, run.err), (0, ""))
        for word in ("gpt2-tiny", "step-00000005", self.summary["state_hash"], "wte.weight", "256 x 64", "verified"):
            self.assertIn(word, run.out)
        quick = self.spillway("inspect", "run/step-00000002", "--quick")
        self.assertEqual(quick.status, 0)
        self.assertNotIn("verified", quick.out)

    def test_inspect_names_the_damaged_piece(self):
        shard = "run/step-00000004/state-00001-of-00001.safetensors"
        self.flip(shard, self.path(shard).stat().st_size - 5000)
        self.assert_refused(self.spillway("inspect", "run/step-00000004"), 5, "run/step-00000004", "not as they were written", "checkpoint")
        self.assertEqual(self.spillway("inspect", "run/step-00000005").status, 0)

    def test_diff_tells_two_checkpoints_apart(self):
        same = self.spillway("inspect", "run/step-00000005", "--diff", "run")
        self.assertEqual(same.status, 0, same.out + same.err)
        other = self.spillway("inspect", "run/step-00000002", "--diff", "run/step-00000004")
        self.assertEqual(other.status, 1)
        self.assertRegex(other.out, r"step: 2 \| 4")
        self.assertRegex(other.out, r"wte\.weight master: \d+ elements differ, by at most")

    def test_export_is_complete_in_one_file_or_several(self):
        whole = self.spillway("export", "run", "--to", "whole", "--dtype", "fp32")
        self.assertEqual((whole.status, whole.err), (0, ""))
        tensors = tensors_of(self.path("whole/model.safetensors"))
        self.assertEqual(tensors["wte.weight"], ("F32", [256, 64]))
        self.assertEqual(len(tensors), 4 * 12 + 4)
        parts = self.spillway("export", "run", "--to", "parts", "--max-file-size", "100KB")
        self.assertEqual(parts.status, 0, parts.err)
        index = self.load("parts/model.safetensors.index.json")["weight_map"]
        self.assertEqual(set(index), set(tensors))
        self.assertGreater(len(set(index.values())), 3)
        for name, file in index.items():
            self.assertEqual(tensors_of(self.path("parts") / file)[name], ("BF16", tensors[name][1]))

    def test_export_overwrites_nothing_and_leaves_nothing_half_written(self):
        self.path("mine").mkdir()
        self.write("mine/thing", "kept")
        before = self.files()
        self.assert_refused(self.spillway("export", "run", "--to", "mine"), 5, "mine")
        shard = "run/step-00000005/state-00001-of-00001.safetensors"
        self.flip(shard, 20000)
        self.assert_refused(self.spillway("export", "run/step-00000005", "--to", "new"), 5, "step-00000005")
        self.assert_same_files(before)

    def test_a_fresh_run_does_not_mix_with_what_is_there(self):
        before = self.files()
        run = self.run_command(self.arguments("train", "config.json", "--out", "run", steps=9))
        self.assert_refused(run, 2, "--out 'run'", "step-00000005", "--resume auto")
        self.assert_same_files(before)

    def test_a_finished_run_has_nothing_left_to_do(self):
        content = self.path("run/metrics.jsonl").read_bytes()
        run = self.run_command(self.arguments("train", "config.json", "--out", "run", "--resume", "auto", steps=5))
        self.assertEqual(run.status, 0, run.err)
        self.assertIn("nothing left to do", run.out)
        self.assertIn(self.summary["state_hash"], run.out)
        self.assertEqual(content, self.path("run/metrics.jsonl").read_bytes())

    def test_wrong_words_are_refused(self):
        self.assert_refused(self.spillway("inspect"), 2, "CHECKPOINT")
        self.assert_refused(self.spillway("inspect", "text.txt"), 5, "text.txt")
        self.assert_refused(self.spillway("inspect", "nowhere"), 5, "nowhere", "step-NNNNNNNN")
        self.assert_refused(self.spillway("export", "run"), 2, "--to")
        self.assert_refused(self.spillway("export", "run", "--to", "x", "--dtype", "int8"), 2, "int8")
        self.assert_refused(self.spillway("export", "run", "--to", "x", "--max-file-size", "much"), 2, "--max-file-size")
        self.assertFalse(self.path("x").exists())


if __name__ == "__main__":
    tap.main()
