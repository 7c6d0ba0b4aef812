#!/usr/bin/env python3
"""Ranks on this machine as it is: the same global batch by 1, 2 and 4 ranks, stages 0 to 3.

Every run has all cores of the machine: ranks divide them. So more ranks cannot be faster here; what shows is what they
cost, and what memory they save. Rounds interleave, ratios are to the run of one rank at the same stage in the same
round, and medians of the rounds count. Each run's bytes on the wire and peaks of memory are compared with the plan of
each rank. The last line of the output is one JSON object.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

MODEL = "gpt2-10m"
GLOBAL_BATCH = 8
TOKENS = 128  # of a sequence
WORLDS = (1, 2, 4)
STAGES = (0, 1, 2, 3)

REHEARSALS = 2

MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def config_of(stage, world):
    return {
        "train_batch_size": GLOBAL_BATCH,
        "train_micro_batch_size_per_gpu": GLOBAL_BATCH // world,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "spillway": {"hash_every": 0},
    }


class Bench:
    def __init__(self, program, folder, steps):
        self.program = str(pathlib.Path(program).resolve())
        self.folder = folder
        self.steps = steps
        chance = random.Random(1)
        words = ["".join(chance.choice("etaoinshrdlu") for _ in range(chance.randint(2, 7))) for _ in range(80)]
        (folder / "text.txt").write_text(" ".join(chance.choice(words) for _ in range(100_000)))

    def run(self, command):
        done = subprocess.run(command, cwd=self.folder, env={**os.environ, **MPI}, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def arguments(self, stage, world):
        name = f"stage{stage}_ranks{world}.json"
        (self.folder / name).write_text(json.dumps(config_of(stage, world)))
        return ["--config", name, "--model", MODEL, "--sequence-length", str(TOKENS)]

    def train(self, stage, world):
        launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(world)] if world > 1 else []
        self.run([*launch, self.program, "train", *self.arguments(stage, world), "--data", "text.txt", "--steps", str(self.steps),
                  "--summary", "summary.json"])
        return json.loads((self.folder / "summary.json").read_text())

    def plans(self, stage, world):
        return [json.loads(self.run([self.program, "plan", "--json", *self.arguments(stage, world), "--ranks", str(world), "--rank", str(rank)]))
                for rank in range(world)]


def sent_off_plan(summary, plans, stage, steps):
    """Largest deviation of any rank from the bytes its plan sends, as a share. A run rehearses two steps before its first;
    these update nothing, so the gathers of new weights (stages 1 and 2) are left out in them."""
    planned = [steps * world["sent_bytes_per_step"] + REHEARSALS * world["reduced_bytes_per_step" if stage in (1, 2) else "sent_bytes_per_step"]
               for world in (plan["world"] for plan in plans)]
    return max(abs(rank["sent_bytes"] - bytes) / max(bytes, 1) for rank, bytes in zip(summary["ranks"], planned))


def peaks_off_plan(summary):
    """Largest deviation of any rank's measured peak of a tier from its ledger, as a share."""
    return max(abs(rank["peak_bytes"][tier] / rank["planned_bytes"][tier] - 1) for rank in summary["ranks"] for tier in ("device", "host"))


def busiest(summary):
    lane, use = max(summary["lanes"].items(), key=lambda item: item[1]["busy_ms_per_step"])
    return f"{lane} {use['busy_ms_per_step'] / summary['step_ms_median']:.0%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the spillway executable")
    parser.add_argument("--json", action="store_true", help="taken as all benchmarks do; the last line is always an object")
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    arguments = parser.parse_args()
    rounds, steps = (1, 4) if arguments.quick else (3, 8)
    load = os.getloadavg()[0]
    runs = {(stage, world): [] for stage in STAGES for world in WORLDS}
    with tempfile.TemporaryDirectory(dir=pathlib.Path(arguments.program).resolve().parent) as folder:
        bench = Bench(arguments.program, pathlib.Path(folder), steps)
        for number in range(rounds):
            for stage, world in runs:
                summary = bench.train(stage, world)
                runs[stage, world].append(summary)
                print(f"round {number + 1}: stage {stage}, {world} ranks: {summary['tokens_per_s']:.0f} tokens/s, "
                      f"step {summary['step_ms_median']:.0f} ms, predicted {summary['predicted_step_ms']:.0f} ms", flush=True)
        plans = {key: bench.plans(*key) for key in runs}
    rows = []
    print("stage ranks  tokens/s  to one rank  busiest lane   sent a rank a step  off the plan  device MiB a rank  host MiB a rank  off the plan")
    for (stage, world), summaries in runs.items():
        ratios = [one["tokens_per_s"] / alone["tokens_per_s"] for one, alone in zip(summaries, runs[stage, 1])]
        sent, peaks = sent_off_plan(summaries[-1], plans[stage, world], stage, steps), peaks_off_plan(summaries[-1])
        row = {"stage": stage, "ranks": world, "tokens_per_s": statistics.median(one["tokens_per_s"] for one in summaries),
               "to_one_rank": statistics.median(ratios), "ratios": ratios, "busiest": busiest(summaries[-1]),
               "planned_sent_bytes_per_step": plans[stage, world][0]["world"]["sent_bytes_per_step"], "sent_off_plan": sent,
               "device_peaks": [rank["peak_bytes"]["device"] for rank in summaries[-1]["ranks"]],
               "host_peaks": [rank["peak_bytes"]["host"] for rank in summaries[-1]["ranks"]],
               "rss_peaks": [rank["rss_peak"] for rank in summaries[-1]["ranks"]], "peaks_off_plan": peaks}
        rows.append(row)
        print(f"{stage:>5} {world:>5} {row['tokens_per_s']:>9.0f} {row['to_one_rank']:>12.2f}  {row['busiest']:<13} "
              f"{row['planned_sent_bytes_per_step'] / 2**20:>14.1f} MiB {sent:>13.2%} {max(row['device_peaks']) / 2**20:>18.1f} "
              f"{max(row['host_peaks']) / 2**20:>16.1f} {peaks:>13.2%}")
    print(json.dumps({"model": MODEL, "global_batch": GLOBAL_BATCH, "sequence": TOKENS, "steps": steps, "rounds": rounds, "rows": rows,
                      "machine": {"cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release, "load_before_and_after": [load, os.getloadavg()[0]]}}))


if __name__ == "__main__":
    main()
