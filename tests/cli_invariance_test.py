"""Where and how a run is executed never changes its result: one state hash for every configuration file."""

import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, tap

STEPS = 20
FP16 = {"bf16": {"enabled": False}, "fp16": {"enabled": True, "initial_scale_power": 20}}

PLACEMENTS = {
    "optimizer on cpu": cli.offload(optimizer="cpu"),
    "optimizer on nvme": cli.offload(optimizer="nvme"),
    "optimizer on nvme, stage 2": cli.merged(cli.offload(optimizer="nvme"), {"zero_optimization": {"stage": 2}}),
    "half of the optimizer on cpu": cli.merged(cli.offload(optimizer="cpu"), {"zero_optimization": {"offload_optimizer": {"ratio": 0.5}}}),
    "parameters and optimizer on cpu": cli.offload("cpu", "cpu"),
    "parameters and optimizer on nvme": cli.ON_NVME,
    "mixed by budget": cli.merged(cli.ON_NVME, {"spillway": {"placement": "fill", "device_memory": "3MiB", "host_memory": "2MiB"}}),
}


def on_nvme(**spillway):
    return cli.merged(cli.ON_NVME, {"spillway": spillway})


class Invariance(cli.CliTest):
    def hash_of(self, *changes, env=None, seed=1234):
        return self.train(self.config(*changes), "--seed", str(seed), env=env, steps=STEPS)["state_hash"]

    def assert_same(self, base, variants):
        reference = self.hash_of(base)
        for name, change in variants.items():
            with self.subTest(name):
                self.assertEqual(self.hash_of(base, change), reference)

    def test_placements_in_bf16(self):
        self.assert_same({}, PLACEMENTS)

    def test_placements_in_fp16(self):
        self.assert_same(FP16, {name: PLACEMENTS[name] for name in ("parameters and optimizer on cpu", "parameters and optimizer on nvme", "mixed by budget")})

    def test_placements_under_accumulation(self):
        self.assert_same({"gradient_accumulation_steps": 4}, {name: PLACEMENTS[name] for name in ("optimizer on cpu", "parameters and optimizer on nvme")})

    def test_tile_sizes(self):
        self.assert_same(cli.ON_NVME, {size: on_nvme(tile_size=size) for size in ("4Ki", "1Mi", "4Mi")})

    def test_threads(self):
        self.assert_same(on_nvme(threads=2), {"1 thread": on_nvme(threads=1), "3 threads": on_nvme(threads=3)})

    def test_prefetch_depths(self):
        self.assert_same(cli.ON_NVME, {f"depth {depth}": on_nvme(prefetch_depth=depth) for depth in (1, 3)})

    def test_io_engines(self):
        self.assert_same(cli.ON_NVME, {engine: on_nvme(io_engine=engine, verify=engine != "threads") for engine in self.io_engines()})

    def io_engines(self):
        line = next(line for line in self.spillway("--version").out.splitlines() if line.startswith("I/O engine:"))
        return line.partition("built in: ")[2].rstrip(")").split(", ")

    def test_instruction_sets(self):
        line = next(line for line in self.spillway("--version").out.splitlines() if line.startswith("instruction set:"))
        isas = line.partition("usable here: ")[2].rstrip(")").split(", ")
        self.assertIn("scalar", isas)
        config = cli.offload(optimizer="cpu")
        self.assertEqual({isa: self.hash_of(config, env={"SPILLWAY_ISA": isa}) for isa in isas},
                         dict.fromkeys(isas, self.hash_of(config)))

    def test_another_seed_gives_another_state(self):
        self.assertNotEqual(self.hash_of({}, seed=1), self.hash_of({}, seed=2))

    def test_precisions_differ(self):
        self.assertNotEqual(self.hash_of({}), self.hash_of(FP16))


tap.main()
