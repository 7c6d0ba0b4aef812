"""Step throughput_PLACEMENT: tokens/s of a GPT-2 of 124 M parameters over tokens a step, by the command line as users run it,
and what share that is of what the device can compute."""

import json
import sys

import flops
import models
from results import figures_of
from target import Target
from workload import Spillway, config, work_folder, write_json, write_tokens

TOKENS_PER_STEP = (1024, 4096, 8192, 16384, 65536)
MICRO_BATCH_TOKENS = 16384  # more tokens a step are accumulated
STEPS = 12


class Bench:
    def __init__(self, target, model):
        self.target, self.model, self.time = target, model, model["context"]
        self.tokens = write_tokens(work_folder() / "tokens.bin", 1 << (14 if target.dry else 22), model["vocabulary"])
        self.model_file = write_json(work_folder() / "model.json", model)
        self.roof = figures_of(target.results, "matmul_roof").get("flop_per_s")
        self.device = figures_of(target.results, "doctor").get("devices", [{"name": ""}])[0]["name"]

    def batch(self, tokens_per_step, micro_batch_tokens):
        """(micro-batch, accumulation)"""
        micro_batch = max(1, min(tokens_per_step, micro_batch_tokens) // self.time)
        return micro_batch, max(1, tokens_per_step // (micro_batch * self.time))

    def run(self, placement, micro_batch, accumulation, steps):
        run = Spillway(self.target).train(config(placement, micro_batch, accumulation), self.model_file, self.tokens, self.time, steps)
        point = run.figures()
        rate = point["tokens_per_s"] * flops.per_token(self.model, point["params"], self.time)
        return {**point, **flops.fractions(rate, self.roof, self.device)}


def main():
    target = Target.of_step()
    bench = Bench(target, models.TINY if target.dry else models.SMALL)
    sizes = (32, 128) if target.dry else TOKENS_PER_STEP
    curve = []
    for size in sizes:
        micro_batch, accumulation = bench.batch(size, 64 if target.dry else MICRO_BATCH_TOKENS)
        curve.append(bench.run(sys.argv[1], micro_batch, accumulation, 4 if target.dry else STEPS))
        print(json.dumps({"model": bench.model, "placement": sys.argv[1], "roof_flop_per_s": bench.roof, "curve": curve}), flush=True)


if __name__ == "__main__":
    main()
