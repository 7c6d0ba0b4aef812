"""Step peers: PyTorch and DeepSpeed beside Spillway in the same minutes: the same model, batch and precision, clipping 1.0. What
cannot be imported here is left out with the reason; without any peer the step is skipped."""

import json
import os
import subprocess
import sys

import models
from step import SKIPPED, figures
from target import OUTER_LIBRARIES, Target
from throughput import Bench
from workload import skip

# A peer, and the placement of Spillway's that keeps the same state in the same place.
PEERS = {"pytorch": "none", "zero_offload": "optimizer", "zero3_offload": "cpu"}
BATCHES = {1024: 1, 8192: 8, 65536: 16}  # tokens a step: sequences a micro-batch
STEPS = 10


def run_peer(target, peer, model_file, micro_batch, accumulation):
    """(its figures, or None, and why)"""
    command = [sys.executable, target.root / "bench/peers/gpu_peer.py", peer, model_file, micro_batch, accumulation, STEPS]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.environ[OUTER_LIBRARIES]}  # not the bundle's: it has libraries of its own
    done = subprocess.run([str(word) for word in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode == 0:
        return figures(lines), ""
    reason = lines[-1] if lines else f"exit status {done.returncode}"
    return None, reason if done.returncode == SKIPPED else f"failed: {reason}"


def main():
    target = Target.of_step()
    bench = Bench(target, models.TINY if target.dry else models.SMALL)
    batches = {64: 2} if target.dry else BATCHES
    rows, left_out = [], {}
    for tokens, micro_batch in batches.items():
        accumulation = tokens // (micro_batch * bench.time)
        for peer, placement in PEERS.items():
            if peer in left_out:
                continue
            theirs, reason = run_peer(target, peer, bench.model_file, micro_batch, accumulation)
            if theirs is None:
                left_out[peer] = reason
                continue
            ours = bench.run(placement, micro_batch, accumulation, STEPS)
            rows.append({"tokens_per_step": tokens, "placement": placement, **theirs, "spillway_tokens_per_s": ours["tokens_per_s"],
                         "ratio": ours["tokens_per_s"] / theirs["tokens_per_s"]})
            print(json.dumps({"model": bench.model, "rows": rows, "left_out": left_out}), flush=True)
    if not rows:
        skip("; ".join(f"{peer}: {reason}" for peer, reason in left_out.items()))
    print(json.dumps({"model": bench.model, "rows": rows, "left_out": left_out}))


main()
