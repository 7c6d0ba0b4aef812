"""Step large_model: the largest GPT-2 shape of up to 8 B parameters whose whole state fits in host memory, trained with all of
it there, and the share of the device's peak that it reaches."""

import json

import models
from target import Target
from throughput import Bench
from workload import Spillway, config, skip

TOKENS_PER_STEP = 65536
MICRO_BATCHES = (8, 4, 2, 1)  # sequences; the largest whose activations fit
STEPS = 4


def available_memory():
    with open("/proc/meminfo", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


def refusal(model, reason):
    return {"params": models.parameters(model), "state_bytes": models.state_bytes(model), "reason": reason}


def largest_that_fits(target, candidates):
    """(model, micro-batch), and what was said of those that do not fit."""
    refused = []
    for model in candidates:
        if models.state_bytes(model) > available_memory():
            refused.append(refusal(model, "the state alone is more than the available memory"))
            continue
        bench = Bench(target, model)
        for micro_batch in MICRO_BATCHES:
            reason = Spillway(target).why_too_large(config("cpu", micro_batch), bench.model_file, bench.tokens, bench.time)
            if not reason:
                return bench, micro_batch, refused
        refused.append(refusal(model, reason))
    skip(f"not even the smallest fits: {refused[-1]['reason']}")


def main():
    target = Target.of_step()
    bench, micro_batch, refused = largest_that_fits(target, [models.TINY] if target.dry else models.LARGE)
    accumulation = 2 if target.dry else max(1, TOKENS_PER_STEP // (micro_batch * bench.time))
    result = {"model": bench.model, "params": models.parameters(bench.model), "too_large": refused, "micro_batch": micro_batch,
              "accumulation": accumulation}
    print(json.dumps(result), flush=True)
    print(json.dumps({**result, **bench.run("cpu", micro_batch, accumulation, 3 if target.dry else STEPS)}))


main()
