"""A run from the command line: what it prints, what it writes, and that the numbers in it hold together."""

import array
import json
import math
import struct
import sys
import xml.etree.ElementTree

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, tap

LANES = ["compute", "h2d", "d2h", "comm", "cpu", "snapshot", "nvme_fetch", "nvme_read", "nvme_write"]
SUMMARY_TYPES = {
    "steps": int, "skipped_steps": int, "loss_first": float, "loss_last": float, "eval_loss": float, "tokens_per_s": float,
    "step_ms_median": float, "predicted_step_ms": float, "binding_lane": str, "state_hash": str, "params": int,
    "state_bytes": int, "optimizer": dict, "peak": dict, "rss_at_start": int, "rss_peak_in_steps": int, "rss_peak": int, "lanes": dict,
    "nvme": dict, "driver": dict, "world_size": int, "first_step": int, "ranks": list, "saves": list, "config_effective": dict,
}


class Help(cli.CliTest):
    def test_help_names_the_commands_their_options_and_the_exit_statuses(self):
        run = self.spillway("--help")
        self.assertEqual((run.status, run.err), (0, ""))
        for word in ("train", "plan", "doctor", "tune", "--version", "Examples:", "Exit status:", "128 + N"):
            self.assertIn(word, run.out)
        run = self.spillway("train", "--help")
        for option in ("config", "model", "data", "steps", "eval-data", "out", "device", "seed", "metrics", "trace", "summary"):
            self.assertRegex(run.out, rf"(?m)^  --{option} ")
        self.assertNotRegex(run.out, r"POSITIVE|TEXT|\bINT\b|\.\.\. \.\.\.", "the parser's own words")
        self.assertIn("--json", self.spillway("plan", "--help").out)

    def test_version_names_the_features(self):
        run = self.spillway("--version")
        self.assertEqual((run.status, run.err), (0, ""))
        self.assertRegex(run.out, r"^spillway \d+\.\d+\.\d+\n")
        self.assertRegex(run.out, r"devices: +host")
        self.assertRegex(run.out, r"instruction set: +\w+ .*scalar")
        self.assertRegex(run.out, r"I/O engine: +\w+ .*threads")


class Train(cli.CliTest):
    def run_into_out(self):
        config = self.config(cli.ON_NVME, {"gradient_accumulation_steps": 2, "spillway": {"device_memory": "4MiB", "host_memory": "4MiB", "nvme_memory": "4MiB"}})
        self.write("eval.txt", cli.text(6_000, seed=2))
        run = self.run_command(self.arguments("train", config, "--eval-data", "eval.txt", "--eval-every", "4", "--out", "out", steps=10))
        self.assertEqual(run.status, 0, run.err)
        return run

    def test_prints_the_ledger_a_progress_line_and_a_summary(self):
        out = self.run_into_out().out
        for line in (r"device +3\.\d MiB +budget 4\.0 MiB", r"  optimizer state +2\.6 MiB", r"predicted step \d+ ms, bound by \w+",
                     r"step 10/10 \| loss \d\.\d+ \| lr 1\.00e-03 \| norm [\d.]+ \| [\d,]+ tok/s \| [\d.]+ m?s \(predicted .*\) \| compute \d+%",
                     r"step +8 \| eval loss \d\.\d+ over [\d,]+ tokens", r"loss +5\.\d+ -> \d\.\d+ in 10 steps, evaluation \d\.\d+",
                     r"host +peak 1\.\d MiB of 4\.0 MiB", r"summary +out/summary\.json"):
            self.assertRegex(out, "(?m)^" + line)

    def test_summary_holds_every_field(self):
        self.run_into_out()
        summary = self.load("out/summary.json")
        self.assertEqual({key: type(value) for key, value in summary.items()}, SUMMARY_TYPES)
        self.assertEqual((summary["steps"], summary["skipped_steps"]), (10, 0))
        self.assertLess(summary["loss_last"], summary["loss_first"] - 0.5)
        self.assertAlmostEqual(summary["loss_first"], math.log(256), delta=0.1)  # nothing known yet
        self.assertLess(summary["eval_loss"], summary["loss_first"])
        self.assertRegex(summary["state_hash"], r"^[0-9a-f]{16}$")
        self.assertEqual(list(summary["lanes"]), LANES)
        self.assertGreater(summary["lanes"]["compute"]["busy_ms_per_step"], 0)
        self.assertIn(summary["binding_lane"], LANES)
        for tier, peak in summary["peak"].items():
            self.assertEqual(peak["budget"], 4 << 20, tier)
            self.assertLessEqual(peak["used"], peak["budget"], tier)
        # Weights, fp32 master and two moments, and the finished gradient: 2 + 12 + 2 bytes.
        self.assertEqual(summary["state_bytes"], 16 * summary["params"])
        self.assertEqual(summary["optimizer"], {"kind": "adam", "moments": "fp32", "state_bytes_per_parameter": 12})
        # Each step reads and writes the 12 bytes of state, padded to pages, and writes 2 of weights.
        self.assertGreater(summary["nvme"]["read_bytes_per_step"], 12 * summary["params"])
        self.assertGreater(summary["nvme"]["write_bytes_per_step"], 14 * summary["params"])
        self.assertLess(summary["nvme"]["write_bytes_per_step"], 15 * summary["params"])
        (path,) = summary["nvme"]["paths"]
        self.assertEqual(path["write_bytes"], 10 * summary["nvme"]["write_bytes_per_step"])
        self.assertGreaterEqual(path["read_bytes"], 10 * summary["nvme"]["read_bytes_per_step"])  # and what evaluations read
        self.assertGreater(path["file_bytes"], summary["peak"]["nvme"]["used"])
        self.assertEqual(path["checksum_failures"], 0)
        for latency in (path["reads"], path["writes"]):
            self.assertGreater(latency["requests"], 0)
            self.assertTrue(0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"], latency)
        self.assertGreaterEqual(summary["nvme"]["wait_ms_per_step"], 0)
        self.assertEqual(summary["config_effective"]["train_batch_size"], 4)
        self.assertLessEqual(summary["rss_at_start"], summary["rss_peak_in_steps"])
        self.assertLessEqual(summary["rss_peak_in_steps"], summary["rss_peak"])

    def test_metrics_tell_each_step_and_agree_with_the_summary(self):
        self.run_into_out()
        records, summary = self.metrics("out/metrics.jsonl"), self.load("out/summary.json")
        self.assertEqual(records[0]["record"], "start")
        steps = [record for record in records if record["record"] == "step"]
        self.assertEqual([step["step"] for step in steps], list(range(1, 11)))
        self.assertEqual((steps[0]["loss"], steps[-1]["loss"]), (summary["loss_first"], summary["loss_last"]))
        self.assertEqual([r["step"] for r in records if r["record"] == "eval"], [4, 8, 10])
        self.assertEqual(list(steps[-1]["lanes_busy_ms"]), LANES)
        self.assertEqual((steps[0]["lanes_busy_ms"], steps[0]["nvme_wait_ms"]), ({}, 0), "no step's times are known yet")
        self.assertTrue(all(step["nvme_wait_ms"] > 0 for step in steps[1:]), "a step ends with a write")
        (total,) = summary["nvme"]["paths"]
        for direction in ("read_bytes", "write_bytes"):
            moved = sum(step["nvme_paths"][0][direction] for step in steps)
            self.assertTrue(0 < moved <= total[direction], direction)

    def test_trace_is_a_chrome_trace_with_one_row_a_lane(self):
        self.run_into_out()
        trace = self.load("out/trace.json")
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        names = {e["args"]["name"].split(" ")[0] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        self.assertGreaterEqual(names, {"compute", "h2d", "d2h", "cpu", "nvme_read", "nvme_write"})
        spans = [e for e in events if e["ph"] == "X"]
        self.assertGreater(len(spans), 500)
        self.assertEqual(len({e["pid"] for e in spans}), 2, "measured beside predicted")
        rows = {}
        for event in spans:
            self.assertGreaterEqual(event["dur"], 0)
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        for row in rows.values():
            row.sort()
            for (_, end), (start, _) in zip(row, row[1:]):
                self.assertLessEqual(end, start + 1e-3, "events of a row overlap")

    def test_curve_is_svg(self):
        self.run_into_out()
        root = xml.etree.ElementTree.parse(self.path("out/loss.svg")).getroot()
        self.assertTrue(root.tag.endswith("svg"))

    def test_leaves_only_its_four_files_and_the_checkpoint_of_its_end(self):
        before = self.files()
        self.run_into_out()
        left = set(self.files()) - set(before) - {"config.json", "eval.txt"}
        checkpoint = "out/step-00000010"
        self.assertEqual(left, {"out", "out/loss.svg", "out/metrics.jsonl", "out/summary.json", "out/trace.json", checkpoint,
                                f"{checkpoint}/manifest.json", f"{checkpoint}/state-00001-of-00001.safetensors"})

    def test_an_own_shape_trains(self):
        self.write("shape.json", json.dumps({"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 64, "vocab_size": 256}))
        self.assertEqual(self.train(self.config(), model="./shape.json")["steps"], 3)


class Data(cli.CliTest):
    def test_text_and_token_files_of_the_same_bytes_train_alike(self):
        content = cli.text(20_000)
        tokens = array.array("H", list(content.encode()))
        self.write("nanogpt.bin", tokens.tobytes())
        # llm.c's header: 256 int32, magic 20240520, version 1, number of tokens.
        self.write("llmc.bin", struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + tokens.tobytes())
        half = len(content) // 2
        self.write("a.txt", content[:half])
        self.write("b.txt", content[half:])
        config = self.config()
        reference = self.train(config)["state_hash"]
        for data in (["nanogpt.bin"], ["llmc.bin"], ["a.txt", "b.txt"]):
            self.assertEqual(self.train(config, data=data)["state_hash"], reference, data)

    def test_another_text_trains_otherwise(self):
        self.write("other.txt", cli.text(20_000, seed=9))
        self.assertNotEqual(self.train(self.config(), data=["other.txt"])["state_hash"], self.train(self.config())["state_hash"])


class Plan(cli.CliTest):
    PLACEMENTS = {
        "device": {},
        "cpu": cli.offload("cpu", "cpu"),
        "nvme": cli.ON_NVME,
        "accumulation": cli.merged(cli.ON_NVME, {"gradient_accumulation_steps": 2}),
        "checkpoints on the host": {"activation_checkpointing": {"cpu_checkpointing": True}},
        "fill": cli.merged(cli.ON_NVME, {"spillway": {"placement": "fill", "device_memory": "3MiB", "host_memory": "2MiB"}}),
    }

    def test_planned_peaks_are_the_measured_ones(self):
        self.write("eval.txt", cli.text(6_000, seed=2))
        for name, change in self.PLACEMENTS.items():
            with self.subTest(name):
                config = self.config(change)
                planned = self.plan(config, "--eval-data", "eval.txt")["tiers"]
                measured = self.train(config, "--eval-data", "eval.txt")["peak"]
                self.assertEqual({t: planned[t]["peak"] for t in planned}, {t: measured[t]["used"] for t in measured})

    def test_json_is_a_whole_plan(self):
        plan = self.plan(self.config(cli.ON_NVME))
        tasks = plan["step"]
        self.assertEqual({task["lane"] for task in tasks}, set(LANES) - {"comm", "snapshot"})
        for i, task in enumerate(tasks):
            for dependency in task["dependencies"]:
                self.assertTrue(dependency["previous_step"] or dependency["task"] < i, "order of the tasks")
            for access in task["accesses"]:
                self.assertLessEqual(access["end"], plan["buffers"][access["buffer"]]["bytes"])
        for buffer in plan["buffers"]:
            self.assertLessEqual(buffer["offset"] + buffer["bytes"], plan["tiers"][buffer["tier"]]["peak"])
        self.assertEqual(sum(layer["elements"] for layer in plan["layers"]), plan["params"])
        self.assertAlmostEqual(max(task["end_ms"] for task in tasks), plan["predicted_step_ms"], delta=plan["predicted_step_ms"])

    def test_text_tells_ledger_lanes_and_prediction(self):
        run = self.run_command(self.arguments("plan", self.config(cli.ON_NVME)))
        self.assertEqual(run.status, 0, run.err)
        for line in (r"device +2\.\d MiB", r"nvme +3\.\d MiB +budget", r"compute +[\d.]+ +[\d.]+%", r"predicted step \d+ ms .*bound by \w+"):
            self.assertRegex(run.out, "(?m)^" + line)

    def test_takes_the_arguments_of_train_and_writes_nothing(self):
        config = self.config(cli.ON_NVME)
        before = self.files()
        run = self.run_command(self.arguments("plan", config, "--out", "out", "--seed", "3", "--eval-data", "text.txt"))
        self.assertEqual(run.status, 0, run.err)
        self.assert_same_files(before)


tap.main()
