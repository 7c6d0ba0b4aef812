"""Step placements: the state after some steps of the tiny model has to be the same bits wherever it is kept."""

import json
import sys

import recipe
from target import Target
from workload import Spillway, config, write_text, work_folder

STEPS, DRY_STEPS = 20, 3


def main():
    target = Target.of_step()
    text = write_text(work_folder() / "text.txt", recipe.TEXT_BYTES)
    hashes = {}
    for placement in ("none", "optimizer", "cpu", "nvme"):
        # Small tiles, and no layer that stays: everything moves.
        run_config = config(placement, recipe.MICRO_BATCH, 2, "bf16", tile_size=16384)
        run_config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        run = Spillway(target).train(run_config, recipe.MODEL, text, recipe.SEQUENCE_LENGTH, DRY_STEPS if target.dry else STEPS)
        hashes[placement] = run.summary["state_hash"]
        print(json.dumps({"state_hash": hashes}), flush=True)
    if len(set(hashes.values())) != 1:
        sys.exit("the state differs between placements")


main()
