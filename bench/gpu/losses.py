"""Step losses: the tiny model on the device, against the losses that the host device gave (tests/fixtures/gpu_losses.json)."""

import json
import sys

import recipe
from target import Target
from workload import Spillway, write_text, work_folder

DRY_STEPS = 4

# Largest |loss - stored| / stored. Rounding differs from device to device (order of sums, tensor cores), and training
# carries it on; a wrong kernel is off by far more within a few steps.
TOLERANCE = {"fp32": 1e-3, "bf16": 1e-2, "fp16": 2e-3}


def main():
    target = Target.of_step()
    stored = json.loads((target.root / "tests/fixtures/gpu_losses.json").read_text())
    text = write_text(work_folder() / "text.txt", recipe.TEXT_BYTES)
    figures, failures = {}, []
    for dtype, expected in stored["losses"].items():
        steps = min(DRY_STEPS, len(expected)) if target.dry else len(expected)
        losses = recipe.train(Spillway(target), dtype, text, steps).losses
        deviations = [abs(got - want) / want for got, want in zip(losses, expected)]
        worst = max(range(steps), key=deviations.__getitem__)
        figures[dtype] = {"steps": steps, "largest_deviation": deviations[worst], "at_step": worst + 1, "allowed": TOLERANCE[dtype], "losses": losses}
        print(json.dumps(figures), flush=True)
        if not deviations[worst] <= TOLERANCE[dtype]:
            failures.append(f"{dtype}: step {worst + 1} has loss {losses[worst]}, stored {expected[worst]}, more than {TOLERANCE[dtype]:g} off")
    sys.exit("\n".join(failures) or 0)


main()
