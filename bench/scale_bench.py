#!/usr/bin/env python3
"""More ranks than this machine has: what the planner predicts, beside what others have published.

Runs `spillway plan --ranks N --json` for every case of scale_cases.json and for one model at 8, 64 and 512 ranks. Each
number comes from the planner or from the named source; nothing is fitted. Rates: profiles/, made of published figures.
The last line of the output is one JSON object with all of it.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
UNITS = {"GB": 10**9, "GiB": 2**30}

# Tried in this order until the plan fits, beginning with what the case asks for.
OFFLOADS = ("activations", "optimizer", "parameters")


def config_of(case, offload):
    zero = {"stage": case.get("stage", 3)}
    if "optimizer" in offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    if "parameters" in offload:
        zero["offload_param"] = {"device": "cpu"}
    zero.update(case.get("zero", {}))
    return {
        "train_micro_batch_size_per_gpu": case["micro_batch"],
        "gradient_accumulation_steps": case.get("accumulation", 1),
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
        "zero_optimization": zero,
        "activation_checkpointing": {"cpu_checkpointing": "activations" in offload},
    }


def bytes_of(size):
    unit = size.lstrip("0123456789")
    return int(size[:-len(unit)]) * UNITS[unit]


def fits(plan, case):
    """Whether a rank's peaks are within the memory it has. (As budgets they would make the planner look for remedies.)"""
    return all(plan["tiers"][tier]["peak"] <= bytes_of(case[f"{tier}_memory"]) for tier in ("device", "host") if f"{tier}_memory" in case)


class Planner:
    def __init__(self, program, folder):
        self.program = program
        self.config = pathlib.Path(folder, "config.json")

    def run(self, case, offload):
        self.config.write_text(json.dumps(config_of(case, offload)))
        command = [self.program, "plan", "--json", "--config", self.config, "--model", HERE / "models" / f"{case['model']}.json",
                   "--ranks", str(case["ranks"]), "--profile", HERE / "profiles" / f"{case['profile']}.json",
                   "--sequence-length", str(case["sequence"])]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
        plan = json.loads(done.stdout)
        plan["planning_s"] = time.monotonic() - start
        return plan

    def first_that_fits(self, case):
        offload = list(case.get("offload", []))
        for more in (None, *(kind for kind in OFFLOADS if kind not in offload)):
            offload += [more] if more else []
            plan = self.run(case, offload)
            if fits(plan, case):
                return plan, offload
        return None, offload


def megatron_flops_per_token(model, sequence):
    """With recomputation, as the sources that quote TFLOPS count them: 96 B s l h^2 (1 + s / 6h + V / 16lh)."""
    l, h, v = model["layers"], model["channels"], model["vocabulary"]
    return 96 * l * h * h * (1 + sequence / (6 * h) + v / (16 * l * h))


def summarize(plan, model, case, offload):
    world = plan["world"]
    flops = megatron_flops_per_token(model, case["sequence"])
    return {
        "model": case["model"], "profile": case["profile"], "ranks": case["ranks"], "stage": case.get("stage", 3),
        "micro_batch": case["micro_batch"], "accumulation": case.get("accumulation", 1), "sequence": case["sequence"],
        "offload": offload, "step_s": plan["predicted_step_ms"] / 1e3, "tokens_per_s_per_gpu": world["tokens_per_s_per_rank"],
        "tflops_per_gpu": world["tokens_per_s_per_rank"] * flops / 1e12, "binding": plan["binding_lane"],
        "critical": {lane: use["critical_ms"] / plan["predicted_step_ms"] for lane, use in plan["lanes"].items() if use["critical_ms"] > 0},
        "busy": {lane: use["busy_ms"] / plan["predicted_step_ms"] for lane, use in plan["lanes"].items() if use["busy_ms"] > 0},
        "device_bytes": plan["tiers"]["device"]["peak"], "host_bytes": plan["tiers"]["host"]["peak"],
        "gathered_bytes": world["gathered_bytes_per_step"], "reduced_bytes": world["reduced_bytes_per_step"],
        "node_network_bytes": world["node_network_bytes_per_step"], "planning_s": plan["planning_s"],
    }


def model_of(name):
    return json.loads((HERE / "models" / f"{name}.json").read_text())


def name_of(case):
    batch = f"{case['micro_batch']} x {case['accumulation']}" if case.get("accumulation", 1) > 1 else str(case["micro_batch"])
    return f"{case['model']:<9} {case['profile']:<10} {case['ranks']:>5}  {batch:>7} x {case['sequence']:<5}"


def compare(planner, cases):
    print("model     profile    ranks    batch a rank  TFLOPS/GPU: plan published  ratio   step s: plan published  bound by      GiB device/host  offloaded")
    results = []
    for case in cases:
        model = model_of(case["model"])
        plan, offload = planner.first_that_fits(case)
        if plan is None:
            print(f"{name_of(case)}  does not fit, whatever is offloaded")
            results.append({**{key: case[key] for key in ("model", "profile", "ranks")}, "fits": False})
            continue
        result = summarize(plan, model, case, offload)
        flops = megatron_flops_per_token(model, case["sequence"])
        published = case["published"].get("tflops_per_gpu") or case["published"]["tokens_per_s_per_gpu"] * flops / 1e12
        tokens = case["micro_batch"] * case.get("accumulation", 1) * case["sequence"]
        result.update(published_tflops_per_gpu=published, published_step_s=tokens * flops / (published * 1e12),
                      ratio=result["tflops_per_gpu"] / published, source=case["source"])
        results.append(result)
        print(f"{name_of(case)} {result['tflops_per_gpu']:>16.1f} {published:>9.1f} {result['ratio']:>6.2f} {result['step_s']:>14.2f} "
              f"{result['published_step_s']:>9.2f}  {result['binding']} {result['critical'][result['binding']]:>4.0%} "
              f"{result['device_bytes'] / 2**30:>10.1f} {result['host_bytes'] / 2**30:>6.1f}  {', '.join(offload) or 'nothing'}", flush=True)
    return results


def scaling_cases():
    """A 13B model at 8, 64 and 512 ranks: the same batch a rank, or 512 sequences of 2048 tokens for all; the whole world
    or each node sharding among itself."""
    shared = {"model": "mpt-13b", "sequence": 2048, "device_memory": "78GiB"}
    for profile in ("a100_80gb", "h100_80gb"):
        for ranks in (8, 64, 512):
            yield "weak", {**shared, "profile": profile, "ranks": ranks, "micro_batch": 8, "accumulation": 1}
        for ranks, micro_batch, accumulation in ((8, 8, 8), (64, 8, 1), (512, 1, 1)):
            yield "strong", {**shared, "profile": profile, "ranks": ranks, "micro_batch": micro_batch, "accumulation": accumulation}
        for ranks, micro_batch, accumulation in ((8, 8, 8), (64, 8, 1), (512, 1, 1)):
            yield "strong, node-local shards", {**shared, "profile": profile, "ranks": ranks, "micro_batch": micro_batch,
                                                "accumulation": accumulation, "offload": ["optimizer"], "zero": {"zero_hpz_partition_size": 8}}
    for ranks in (8, 64, 512):
        yield "weak, optimizer on the host", {"model": "mpt-70b", "sequence": 2048, "device_memory": "78GiB", "host_memory": "212GB", "profile": "a100_80gb",
                                              "ranks": ranks, "micro_batch": 4, "accumulation": 1, "offload": ["optimizer"]}


def scale(planner):
    print("\nscaling                      model     profile    ranks    batch a rank  tokens/s/GPU  step s  efficiency  compute  comm busy  bound by   network GB a node")
    results, first = [], {}
    for kind, case in scaling_cases():
        plan, offload = planner.first_that_fits(case)
        key = (kind, case["model"], case["profile"])
        if plan is None:
            print(f"{kind:<28} {name_of(case)}  does not fit, whatever is offloaded")
            continue
        result = {"kind": kind, **summarize(plan, model_of(case["model"]), case, offload)}
        first.setdefault(key, result["tokens_per_s_per_gpu"])
        result["efficiency"] = result["tokens_per_s_per_gpu"] / first[key]
        results.append(result)
        print(f"{kind:<28} {name_of(case)} {result['tokens_per_s_per_gpu']:>12.0f} {result['step_s']:>7.2f} {result['efficiency']:>10.0%} "
              f"{result['busy']['compute']:>8.0%} {result['busy'].get('comm', 0):>8.0%}   {result['binding']:<8} {result['node_network_bytes'] / 1e9:>10.0f}"
              f"{'' if offload == case.get('offload', []) else '  offloaded: ' + ', '.join(offload)}", flush=True)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the spillway executable")
    parser.add_argument("--json", action="store_true", help="taken as all benchmarks do; the last line is always an object")
    parser.add_argument("--quick", action="store_true", help="the first case of each source, no scaling")
    arguments = parser.parse_args()
    cases = json.loads((HERE / "scale_cases.json").read_text())
    if arguments.quick:
        cases = list({case["source"]: case for case in reversed(cases)}.values())
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(arguments.program, folder)
        result = {"published": compare(planner, cases), "scaling": [] if arguments.quick else scale(planner)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
