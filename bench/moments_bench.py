#!/usr/bin/env python3
"""What keeping Adam's moments in fewer bytes costs the model: the demo's model on the demo's text, 500 steps from the same seed,
with moments in fp32, bf16 and 8 bits (spillway.moments), and the loss over held-out text after them.

A ratio is the evaluation loss over that with fp32 moments, of the same seed; with --seeds N, N seeds are trained, and the figure is
the mean of their ratios. How far fp32 itself is from seed to seed is reported beside. The last line of the output is one JSON object.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = ROOT / "out/bench"
FORMATS = ("fp32", "bf16", "8bit")
MODEL = "gpt2-10m"
EVALUATION_BATCHES = 64


def config_of(moments):
    """The demo's, with everything in host memory: placement does not change what is computed."""
    return {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 20, "warmup_type": "linear",
                                                           "warmup_min_ratio": 0.1, "cos_min_ratio": 0.1}},
        "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
        "spillway": {"moments": moments},
    }


class Bench:
    def __init__(self, program, folder, steps):
        self.program, self.folder, self.steps = pathlib.Path(program).resolve(), pathlib.Path(folder), steps
        self.texts = [TEXT / "kjv.txt", TEXT / "kjv-eval.txt"]
        subprocess.run([ROOT / "scripts/kjv_text.sh", *self.texts], check=True)

    def train(self, moments, seed):
        config, out = self.folder / f"{moments}.json", self.folder / f"{moments}-{seed}"
        config.write_text(json.dumps(config_of(moments)))
        command = [self.program, "train", "--config", config, "--model", MODEL, "--data", self.texts[0], "--eval-data", self.texts[1],
                   "--eval-batches", EVALUATION_BATCHES, "--steps", self.steps, "--seed", seed, "--out", out, "--summary", out / "summary.json"]
        out.mkdir()
        done = subprocess.run([str(word) for word in command], cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads((out / "summary.json").read_text())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--json", action="store_true", help="the only format there is")
    parser.add_argument("--quick", action="store_true", help="50 steps")
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    steps = 50 if arguments.quick else 500

    losses, summaries = {moments: [] for moments in FORMATS}, []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.program, folder, steps)
        for seed in range(1, arguments.seeds + 1):
            for moments in FORMATS:
                summary = bench.train(moments, seed)
                losses[moments].append(summary["eval_loss"])
                summaries.append({"moments": moments, "seed": seed, **{key: summary[key] for key in (
                    "eval_loss", "loss_last", "skipped_steps", "state_bytes", "state_hash", "step_ms_median")}})
                ratio = losses[moments][-1] / losses["fp32"][-1]
                print(f"seed {seed}, moments {moments:<4}: evaluation loss {summary['eval_loss']:.5f}, over fp32 {ratio:.5f}, "
                      f"{summary['state_bytes']} bytes of state", flush=True)
    ratios = {f"{moments}_over_fp32": round(statistics.mean(a / b for a, b in zip(losses[moments], losses["fp32"])), 5) for moments in FORMATS[1:]}
    spread = (max(losses["fp32"]) - min(losses["fp32"])) / statistics.mean(losses["fp32"])
    print(json.dumps({**ratios, "fp32_spread_of_seeds": round(spread, 5) if arguments.seeds > 1 else None, "steps": steps, "model": MODEL,
                      "load": round(os.getloadavg()[0], 2), "runs": summaries}))


if __name__ == "__main__":
    main()
