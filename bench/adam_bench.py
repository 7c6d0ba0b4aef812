#!/usr/bin/env python3
"""The CPU optimizer beside what the memory allows, DeepSpeed's CPUAdam and PyTorch's fused CPU AdamW, on 1 and 2 threads.

  roof_1t, roof_2t         time of an Adam step's traffic alone, 28 bytes a parameter, by the quickest of some plain loops / time of
                           the step with fp32 gradients, which moves the same bytes; roof_pipeline_1t, roof_pipeline_2t: with 16-bit
                           gradients and weights
  over_deepspeed_fp32      DeepSpeed's time of the same step / ours
  over_deepspeed_pipeline  its time from a bf16 gradient in host memory to bf16 weights there (converted, unscaled and clipped,
                           stepped, copied out) / ours, which is one call
  over_torch_fused, over_torch_pipeline   likewise PyTorch's

Ratios to peers are on 2 threads; the names with _1t are on one. A round is a turn of every contender on every number of threads,
one at a time, in an order that is reversed every other round; a figure is the median of the rounds' ratios. The masters after two
steps are compared first. Peers are installed by bench/peers/install.sh; without them only the roofs are reported.

The last line of the output is one JSON object.
"""

import argparse
import array
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from turn_process import TurnProcess, peers_python

PROGRAM = "bench/adam_turns"
HERE = pathlib.Path(__file__).resolve().parent
PEERS = ("deepspeed", "torch")
PEER_JOBS = ("fp32", "pipeline bf16", "pipeline fp16", "pipeline fp16 with norm")
ROOFS = {"roof fp32": "fp32", "roof 16-bit": "pipeline bf16"}  # and the job of each
CALIBRATION_ROUNDS, FINALISTS = 5, 2
TRAFFIC_BYTES = 28
# Peers form some products and sums in another order, or fused: masters of up to 1/16 after two steps of 1e-3.
TOLERANCE = 3e-8
SETTLE_S = 0.05  # idle threads of an OpenMP runtime spin for some milliseconds before they sleep


class Contender(TurnProcess):
    """A process on some cores."""

    def __init__(self, name, cores, command, environment):
        super().__init__(name, command, environment, lambda: os.sched_setaffinity(0, cores))
        self.threads = len(cores)
        if self.introduction["threads"] != len(cores):
            sys.exit(f"{name}: bound to {len(cores)} cores it uses {self.introduction['threads']} threads")

    def masters(self, job, folder):
        path = pathlib.Path(folder, "masters")
        self.ask(f"state {job} {path}")
        return array.array("f", path.read_bytes())


def start(program, parameters, cores, huge_pages):
    contenders = [Contender("spillway", cores, [program, str(parameters)], None)]
    python = peers_python()
    if python.exists():
        environment = {**os.environ, "THP_MEM_ALLOC_ENABLE": "1" if huge_pages else "0"}
        for peer in PEERS:
            command = [python, HERE / "peers/adam_peer.py", peer, str(parameters), *map(str, cores)]
            contenders.append(Contender(peer, cores, command, environment))
    return contenders


def verify(contenders, folder):
    """Same masters as the peers', or the times compare different jobs."""
    ours, peers = contenders[0], contenders[1:]
    largest = {}
    for job in PEER_JOBS[:3]:
        expected = ours.masters(job, folder)
        for peer in peers:
            found = peer.masters(job, folder)
            largest[f"{peer.name} {job}"] = worst = max(abs(a - b) for a, b in zip(expected, found, strict=True))
            print(f"after two steps of {job}: masters differ from those of {peer.name} by at most {worst:.2g}", flush=True)
            if not worst <= TOLERANCE:
                sys.exit(f"{peer.name}, {job}: masters differ from ours by {worst}, more than {TOLERANCE}: not the same job")
    return largest


def take_turn(contender, job):
    time.sleep(SETTLE_S)
    return contender.ask(f"turn {job}")


def quickest_loops(ours):
    """Of each roof, the FINALISTS quickest of some rounds before those that count: the best of many in a few noisy rounds would look
    better than it is."""
    found = {}
    for roof in ROOFS:
        seconds = {f"{roof}: {loop}": [] for loop in ours.introduction[roof]}
        for _ in range(CALIBRATION_ROUNDS):
            for loop, times in seconds.items():
                times.append(statistics.mean(take_turn(ours, loop)["seconds"]))
        found[roof] = sorted(seconds, key=lambda loop: statistics.median(seconds[loop]))[:FINALISTS]
        print(f"{ours.threads} thread{'s' if ours.threads > 1 else ''}, ms: "
              + ", ".join(f"{loop} {1e3 * statistics.median(times):.1f}" for loop, times in seconds.items()), flush=True)
    return found


def turns_of(contenders, loops):
    """(contender, job) in an order that has each job between the loops that are its roof."""
    ours, peers = contenders[0], contenders[1:]
    order = []
    for roof, job in ROOFS.items():
        first, *others = loops[roof]
        order += [(ours, first), (ours, job), *((ours, loop) for loop in others), *((peer, job) for peer in peers)]
    order += [(ours, job) for job in ours.introduction["bytes"] if job not in ROOFS.values()]
    return order + [(peer, job) for peer in peers for job in PEER_JOBS if job not in ROOFS.values()]


class Results:
    """Seconds by contender, job and round, for one number of threads."""

    def __init__(self):
        self.seconds, self.passes = {}, {}

    def add(self, contender, job, answer):
        self.seconds.setdefault((contender.name, job), []).append(statistics.mean(answer["seconds"]))
        for name, seconds in answer.get("passes", {}).items():
            self.passes.setdefault((contender.name, job), {}).setdefault(name, []).append(seconds)

    def median(self, name, job):
        return statistics.median(self.seconds[name, job])

    def roof(self, kind):
        """Its quickest loop."""
        return min((job for _, job in self.seconds if job.startswith(kind + ": ")), key=lambda job: self.median("spillway", job))

    def ratio(self, dividend, divisor):
        return statistics.median(a / b for a, b in zip(self.seconds[dividend], self.seconds[divisor], strict=True))

    def figures(self):
        found = {name: self.ratio(("spillway", self.roof(roof)), ("spillway", ROOFS[roof]))
                 for name, roof in (("roof", "roof fp32"), ("roof_pipeline", "roof 16-bit"))}
        for peer in PEERS:
            if (peer, "fp32") not in self.seconds:
                continue
            short = "over_torch_fused" if peer == "torch" else f"over_{peer}_fp32"
            for name, job in ((short, "fp32"), *((f"over_{peer}_{job.replace(' ', '_').removesuffix('_bf16')}", job) for job in PEER_JOBS[1:])):
                found[name] = self.ratio((peer, job), ("spillway", job))
        return found


def show(results, contenders, order, parameters):
    threads, job_bytes = contenders[0].threads, contenders[0].introduction["bytes"]
    roof_s = results.median("spillway", results.roof("roof 16-bit"))
    roof_rate = TRAFFIC_BYTES * parameters / roof_s
    print(f"\n{threads} thread{'s' if threads > 1 else ''}: ms (lowest and highest round), GB/s of needed bytes, of the 16-bit roof's rate")
    for name, job in ((contender.name, job) for contender, job in order):
        seconds = results.seconds[name, job]
        needed = TRAFFIC_BYTES if job.startswith("roof") else job_bytes[job]
        rate = needed * parameters / statistics.median(seconds)
        print(f"  {name:<10} {job:<44} {1e3 * statistics.median(seconds):8.1f} ({1e3 * min(seconds):.1f} to {1e3 * max(seconds):.1f})"
              f"  {needed:7.3f} B  {rate * 1e-9:6.2f} GB/s  {rate / roof_rate:5.2f}")
        passes = results.passes.get((name, job), {})
        if len(passes) > 1:
            print(" " * 15 + ", ".join(f"{part} {1e3 * statistics.median(times):.1f}" for part, times in passes.items()))


def measure(groups, orders, rounds):
    results = {threads: Results() for threads in groups}
    for number in range(rounds + 1):
        load = os.getloadavg()[0]
        for threads, order in orders.items():
            for contender, job in order[::-1 if number % 2 else 1]:
                answer = take_turn(contender, job)
                if number > 0:  # the first warms up
                    results[threads].add(contender, job, answer)
        print(f"round {number}{' (not counted)' if number == 0 else ''}: load average at its start {load:.2f}", flush=True)
    return results


def summary_of(results):
    summary = {}
    for threads, found in results.items():
        for name, value in found.figures().items():
            summary[f"{name}_{threads}t" if name.startswith("roof") or threads == 1 else name] = round(value, 3)
    summary["roofs"] = {threads: [found.roof(kind) for kind in ROOFS] for threads, found in results.items()}
    summary["seconds"] = {threads: {f"{name}, {job}": [round(s, 5) for s in seconds] for (name, job), seconds in found.seconds.items()}
                          for threads, found in results.items()}
    return summary


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--json", action="store_true", help="the only format there is")
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 15")
    parser.add_argument("--parameters", type=int, default=64 << 20, help="much fewer than 64 Mi partly stay in the last-level cache")
    parser.add_argument("--small-pages", action="store_true", help="peers on pages of 4 KiB, which is PyTorch's default")
    arguments = parser.parse_args()
    parameters, rounds = arguments.parameters, 3 if arguments.quick else 15
    cores = sorted(os.sched_getaffinity(0))[:2]

    groups = {threads: start(arguments.program, parameters, cores[:threads], not arguments.small_pages) for threads in range(1, len(cores) + 1)}
    ours = groups[1][0].introduction
    versions = {peer.name: peer.introduction["version"] for peer in groups[1][1:]}
    print(f"{parameters >> 20} Mi parameters, instruction set {ours['isa']}, peers: {versions or 'none'}")
    with tempfile.TemporaryDirectory() as folder:
        largest = {threads: verify(contenders, folder) for threads, contenders in groups.items()}
    orders = {threads: turns_of(contenders, quickest_loops(contenders[0])) for threads, contenders in groups.items()}
    results = measure(groups, orders, rounds)
    for threads, contenders in groups.items():
        for contender in contenders:
            contender.close()
        show(results[threads], contenders, orders[threads], parameters)
    if not versions:
        print(f"\nno peers: {peers_python()} is missing; bench/peers/install.sh installs PyTorch and DeepSpeed there (5.5 GiB)")
    print(json.dumps({**summary_of(results), "parameters": parameters, "rounds": rounds, "isa": ours["isa"], "peers": versions or "not installed",
                      "peer_pages": "small" if arguments.small_pages else "huge", "largest_difference": largest, "machine": ours["machine"]}))


if __name__ == "__main__":
    main()
