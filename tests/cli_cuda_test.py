"""The program on CUDA devices, which are simulated here: what it computes, wherever state is and however many ranks there are,
what it says of machines and devices that cannot serve, and how it ends when one fails.

SPILLWAY_CUDA_MODULE names the simulated module; CUDA_SIM_DEVICE and CUDA_SIM_FAULT are tests/cuda_sim's own (README.md there).
"""

import json
import os
import subprocess
import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, ranks, tap

MEMORY, DEVICE = 4, 6
GIB = 1 << 30
PLACEMENTS = [(None, None), (None, "cpu"), (None, "nvme"), ("cpu", "nvme"), ("nvme", "nvme")]


def devices(count=1, memory=GIB, **more):
    """An environment with so many simulated devices of so much memory."""
    return {"CUDA_SIM_DEVICE": f"count={count},memory={memory}", **more}


class CudaTest(ranks.RanksTest):
    def setUp(self):
        super().setUp()
        self.path("swap").mkdir()

    def words(self, config, *more, device="cuda", **inputs):
        return self.arguments("train", config, "--device", device, "--sequence-length", "16", *more, **inputs)

    def go(self, config, *more, env=None, **inputs):
        """A run that has to end well; its summary."""
        run = self.run_command(self.words(config, "--summary", "summary.json", *more, **inputs), env or devices())
        self.assertEqual(run.status, 0, run.out + run.err)
        return self.load("summary.json")

    def refused(self, status, env, *words, config=None):
        config = config or self.config()
        before = self.files()
        run = self.run_command(self.words(config, "--out", "made/for/it"), env)
        self.assert_refused(run, status, *words)
        self.assert_same_files(before)


class Results(CudaTest):
    def test_placement_changes_nothing(self):
        hashes = {p: self.go(self.config(cli.offload(*p, "swap")))["state_hash"] for p in PLACEMENTS}
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_learns_as_the_host_device_does(self):
        here, there = (self.go(self.config(), device=device, steps=6) for device in ("cuda", "host"))
        for loss in ("loss_first", "loss_last"):
            self.assertAlmostEqual(here[loss] / there[loss], 1, delta=5e-3)
        self.assertLess(here["loss_last"], here["loss_first"] - 0.1)

    def test_ranks_of_every_stage_compute_alike(self):
        hashes = set()
        for stage in range(4):
            config = self.config({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}})
            run = self.run_ranks(2, self.words(config, "--summary", "summary.json"), env=devices(2))
            self.assertEqual(run.status, 0, run.out + run.err)
            hashes.add(self.load("summary.json")["state_hash"])
        self.assertEqual(len(hashes), 1)

    def test_checkpoints_go_from_device_to_device_and_world_to_world(self):
        config = self.config(cli.offload(optimizer="cpu"), {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2})
        alone = self.config({"train_batch_size": 4, "gradient_accumulation_steps": 2}, name="alone.json")
        self.go(alone, "--out", "run", device="host", steps=2)
        run = self.run_ranks(2, self.words(config, "--out", "run", "--resume", "auto", steps=4), env=devices(2))
        self.assertEqual(run.status, 0, run.out + run.err)
        self.assertIn("resumed from run/step-00000002", run.out)
        again = self.go(alone, "--out", "run", "--resume", "auto", device="host", steps=5)
        self.assertEqual(again["first_step"], 5)
        self.assertEqual(self.spillway("inspect", "run").status, 0)


    def test_the_drivers_account_is_in_the_summary_where_there_is_one(self):
        # The folder of the simulated module holds a simulated NVML too.
        with_nvml = devices(LD_LIBRARY_PATH=os.path.dirname(os.environ["SPILLWAY_CUDA_MODULE"]))
        driver = self.go(self.config(), env=with_nvml)["driver"]
        self.assertTrue(0 < driver["utilization"] <= 1)
        self.assertGreater(driver["used_bytes_peak"], 0)
        self.assertEqual(self.go(self.config(), device="host")["driver"], {"utilization": None, "used_bytes_peak": None})


class Choice(CudaTest):
    def test_auto_takes_the_cuda_device(self):
        run = self.run_command(self.words(self.config(), "--metrics", "metrics.jsonl", device="auto"), devices())
        self.assertEqual(run.status, 0, run.err)
        self.assertEqual(self.metrics()[0]["device"], "cuda:0")

    def test_auto_says_in_one_line_why_it_takes_the_host_device(self):
        for state, words in {"absent": "driver", "stub": "stub", "none": "device"}.items():
            with self.subTest(state):
                run = self.run_command(self.words(self.config(), "--metrics", "metrics.jsonl", device="auto"), {"CUDA_SIM_DEVICE": state})
                self.assertEqual(run.status, 0, run.err)
                lines = [line for line in run.err.splitlines() if "device: host" in line]
                self.assertEqual(len(lines), 1, run.err)
                self.assertIn(words, lines[0])
                self.assertEqual(self.metrics()[0]["device"], "host")

    def test_a_run_on_the_host_device_loads_nothing_of_cuda(self):
        needed = subprocess.run(["ldd", cli.SPILLWAY], capture_output=True, text=True, check=True).stdout
        for library in ("libcuda", "libcublas", "libnccl", "spillway_cuda"):
            self.assertNotIn(library, needed)
        traced = self.run_command(self.words(self.config(), device="host"), {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(self.path("loaded"))})
        self.assertEqual(traced.status, 0, traced.err)
        loaded = "".join(path.read_text() for path in self.folder.glob("loaded.*"))
        self.assertIn("libc.so", loaded)
        self.assertNotIn("cuda_sim", loaded)

    def test_plans_for_a_card_that_is_not_there(self):
        run = self.spillway("plan", "--config", self.config(), "--model", "gpt2-tiny", "--device", "cuda", "--ranks", "2", "--profile", "profile.json",
                            "--json", env={"CUDA_SIM_DEVICE": "absent"})
        self.assertEqual(run.status, 0, run.err)
        self.assertGreater(json.loads(run.out)["tiers"]["device"]["at_the_peak"]["workspace"], 32 << 20)


class Refusals(CudaTest):
    def test_machines_without_a_device(self):
        for state, words in {"absent": "driver", "stub": "stub", "none": "no CUDA-capable device"}.items():
            with self.subTest(state):
                self.refused(DEVICE, {"CUDA_SIM_DEVICE": state}, "cuda", words)

    def test_a_module_that_is_not_there(self):
        self.refused(DEVICE, {"SPILLWAY_CUDA_MODULE": "/none/libspillway_cuda.so"}, "/none/libspillway_cuda.so")

    def test_more_device_memory_than_is_free(self):
        config = self.config({"spillway": {"device_memory": "900MiB"}})
        self.refused(MEMORY, devices(memory=GIB), "spillway.device_memory", "900", "cuda:0", config=config)

    def test_a_model_that_does_not_fit_is_refused_before_the_first_step(self):
        config = self.config({"spillway": {"device_memory": "33MiB"}})
        self.refused(MEMORY, devices(), "device", "too small", config=config)

    def test_host_memory_that_cannot_be_pinned(self):
        self.refused(MEMORY, devices(CUDA_SIM_FAULT="pinning"), "pin", config=self.config(cli.offload(optimizer="cpu")))

    def test_more_ranks_than_devices(self):
        run = self.run_ranks(3, self.words(self.config({"train_batch_size": 6})), env=devices(2))
        self.assertEqual(run.status, DEVICE, run.out + run.err)
        self.assertIn("rank needs one of its own", run.err)


class Failures(CudaTest):
    def test_a_fault_on_the_device_ends_the_run_and_leaves_the_last_checkpoint(self):
        config = self.config()
        self.go(config, "--out", "run", steps=2)
        run = self.run_command(self.words(config, "--out", "run", "--resume", "auto", steps=400), devices(CUDA_SIM_FAULT="launch=1500"))
        self.assertEqual(run.status, DEVICE, run.out + run.err)
        self.assertIn("[cuda]", run.err)
        self.assertEqual(self.spillway("inspect", "run").status, 0)
        self.assertEqual(self.go(config, "--out", "run", "--resume", "auto", steps=4)["first_step"], 3)

    def test_a_rank_that_dies_is_named_by_the_others(self):
        config = self.config({"train_batch_size": 4})
        run = self.run_ranks(2, ["sh", "-c", 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then export CUDA_SIM_FAULT=launch=900; fi; exec "$@"', "sh",
                                 *self.words(config, steps=400)], env=devices(2))
        self.assertNotEqual(run.status, 0)
        self.assertIn("rank 1", run.err)
        self.assertIn("[cuda]", run.err)


class Doctor(CudaTest):
    def test_shows_every_device_with_its_link(self):
        run = self.spillway("doctor", "--json", env=devices(2))
        self.assertEqual(run.status, 0, run.err)
        report = json.loads(run.out)
        self.assertEqual([device["index"] for device in report["devices"]], [0, 1])
        for device in report["devices"]:
            self.assertEqual((device["error"], device["memory_bytes"]), ("", GIB))
            for rate in ("h2d_bytes_per_s", "d2h_bytes_per_s", "both_ways_bytes_per_s"):
                self.assertGreater(device[rate], 0)
        self.assertIn("cuda:1", self.spillway("doctor", env=devices(2)).out)


tap.main()
