#!/usr/bin/env python3
"""Saving and resuming through the program itself, beside what the disk can do.

A 57 M parameter model (656 MiB of state in a checkpoint) trains on the host device with its optimizer state in host memory
and on NVMe. Rounds interleave the disk's rate, as fio measures it on the same file system, with a run that saves and
one that resumes; figures are medians of rounds. The last line of the output is one JSON object.
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
import threading
import time

MODEL = {"layers": 8, "channels": 768, "heads": 12, "vocabulary": 256, "context": 512}
SEQUENCE, STEPS, SAVE_EVERY = 64, 9, 5
TWO_TILES = "96MiB"
# Name: where the optimizer's state is, and spillway.checkpoint_memory (none: what the program chooses).
CASES = {"cpu": ("cpu", None), "nvme": ("nvme", None), "cpu, two tiles": ("cpu", TWO_TILES)}


def write_text(path):
    """Text of words, the same every time."""
    chance = random.Random(7)
    words = ["".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(2, 9))) for _ in range(2000)]
    path.write_text(" ".join(chance.choice(words) for _ in range(100_000)))


def config_of(device, checkpoint_memory):
    offload = {"device": device, **({"nvme_path": "."} if device == "nvme" else {})}
    spillway = {"checkpoint_memory": checkpoint_memory} if checkpoint_memory else {}
    return {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "zero_optimization": {"stage": 1, "offload_optimizer": offload}, "spillway": spillway}


class Bench:
    def __init__(self, program, folder):
        self.program = os.path.abspath(program)
        self.folder = pathlib.Path(folder)
        write_text(self.folder / "text.txt")
        (self.folder / "model.json").write_text(json.dumps(MODEL))
        for name, (device, memory) in CASES.items():
            (self.folder / f"{name}.json").write_text(json.dumps(config_of(device, memory)))

    def start(self, case, out, steps, *more):
        command = [self.program, "train", "--config", f"{case}.json", "--model", "./model.json", "--data", "text.txt", "--steps", str(steps),
                   "--sequence-length", str(SEQUENCE), "--device", "host", "--out", out, *more]
        return subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, process, out):
        text = process.communicate()[0]
        if process.returncode != 0:
            sys.exit(f"{' '.join(process.args)}\n{text}")
        records = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
        return json.loads((self.folder / out / "summary.json").read_text()), [r for r in records if r["record"] == "step"]

    def clear(self, out):
        for path in sorted((self.folder / out).glob("**/*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()

    def fio(self, kind, size, *more):
        """Bytes per second, sequential, O_DIRECT, one job; both directions together if it reads and writes."""
        command = ["fio", "--name=roof", "--filename=fio.dat", f"--size={size}", f"--rw={kind}", "--direct=1", "--ioengine=io_uring", "--bs=1m",
                   "--iodepth=32", "--invalidate=0", "--output-format=json", *more]
        job = json.loads(subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout)["jobs"][0]
        moved = job["read"]["io_bytes"] + job["write"]["io_bytes"]
        return moved / (max(job["read"]["runtime"], job["write"]["runtime"]) / 1e3)

    def roofs(self, size):
        """Writing a new file until it is on disk, reading it, and both at once over it."""
        (self.folder / "fio.dat").unlink(missing_ok=True)
        return {"write": self.fio("write", size, "--end_fsync=1"), "read": self.fio("read", size), "mixed": self.fio("rw", size, "--rwmixread=50")}

    def save(self, case):
        self.clear("saves")
        summary, steps = self.finish(self.start(case, "saves", STEPS, "--save-every", str(SAVE_EVERY), "--keep", "1"), "saves")
        return summary, [step["step_ms"] for step in steps]

    def plain(self, case):
        """A run of the same kind that saves nothing but its last state, as every run does."""
        self.clear("plain")
        return self.finish(self.start(case, "plain", 2), "plain")[0]

    def resume(self, case, checkpoint, size):
        """Goes on with an uncached checkpoint; also returns the rate at which it was read."""
        self.clear("resumed")
        for path in (self.folder / checkpoint).glob("*"):
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        process = self.start(case, "resumed", STEPS + 1, "--resume", checkpoint)
        samples = []
        watch = threading.Thread(target=watch_reading, args=(process, samples))
        watch.start()
        summary, _ = self.finish(process, "resumed")
        watch.join()
        return summary, reading_rate(samples, size)


def watch_reading(process, samples):
    """Time and bytes read by system calls so far, until the process has ended. Swapping goes through io_uring, and is not among them."""
    while process.poll() is None:
        try:
            counters = pathlib.Path(f"/proc/{process.pid}/io").read_text()
        except OSError:
            return
        samples.append((time.monotonic(), int(counters.split("rchar: ")[1].split()[0])))
        time.sleep(0.005)


def reading_rate(samples, size):
    """Of the middle 90 % of the checkpoint."""
    last = samples[-1][1]
    first_time, first = next((t, n) for t, n in samples if n >= last - size * 0.95)
    last_time, end = next((t, n) for t, n in samples if n >= last - size * 0.05)
    return (end - first) / (last_time - first_time)


def step_of_save(times):
    """What a save adds to the steps it overlaps, in median steps: the longest of the two in which updates can wait for it."""
    touched = {step + n for step in range(SAVE_EVERY, STEPS, SAVE_EVERY) for n in (1, 2)}
    usual = statistics.median(ms for step, ms in enumerate(times, 1) if step > 1 and step not in touched)
    return [(max(times[step], times[step + 1] if step + 1 < len(times) else 0.0) - usual) / usual for step in range(SAVE_EVERY, STEPS, SAVE_EVERY)], usual


def measure(bench, case, size, plain):
    roofs = bench.roofs(size)
    summary, times = bench.save(case)
    stops, usual = step_of_save(times)
    *during, last = [save["bytes"] / save["seconds"] for save in summary["saves"]]
    # Between steps, state on NVMe is read while it is saved: half of what the disk moves is written.
    roof = roofs["mixed"] / 2 if CASES[case][0] == "nvme" else roofs["write"]
    resumed, read = bench.resume(case, f"saves/step-{STEPS:08}", size)
    return {"roofs": roofs, "save_bytes_per_s": last, "save_over_roof": last / roof, "save_during_steps_over_roof": statistics.median(during) / roof,
            "stops": stops, "step_ms": usual, "steps_ms": times, "rss": summary["rss_peak"], "rss_plain": plain["rss_peak"],
            "rss_resumed": resumed["rss_peak"], "planned": summary["peak"]["host"]["used"], "planned_plain": plain["peak"]["host"]["used"],
            "read_bytes_per_s": read, "read_over_roof": read / roofs["read"], "load": os.getloadavg()[0]}


def show(case, round_number, r):
    mib = 1 << 20
    print(f"{case:<15} {round_number:>5} {r['load']:>5.1f} {r['roofs']['write'] / 1e9:>6.2f} {r['roofs']['mixed'] / 1e9:>6.2f} {r['roofs']['read'] / 1e9:>5.2f}"
          f"  {r['save_bytes_per_s'] / 1e9:>5.2f} {r['save_over_roof']:>5.2f} {r['save_during_steps_over_roof']:>7.2f}"
          f"  {r['step_ms']:>6.0f} {', '.join(f'{stop:.2f}' for stop in r['stops']):>11}"
          f"  {(r['rss'] - r['rss_plain']) / mib:>8.1f} {(r['planned'] - r['planned_plain']) / mib:>8.1f}"
          f"  {r['read_bytes_per_s'] / 1e9:>5.2f} {r['read_over_roof']:>5.2f} {(r['rss_resumed'] - r['rss_plain']) / mib:>8.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the spillway executable")
    parser.add_argument("--json", action="store_true", help="taken as all benchmarks do; the last line is always an object")
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    arguments = parser.parse_args()
    results = {case: [] for case in CASES}
    pathlib.Path("out/bench").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="out/bench") as folder:
        bench = Bench(arguments.program, folder)
        size = bench.save("cpu")[0]["saves"][-1]["bytes"]
        print("                            fio GB/s            save, GB/s, of roof       step       stop       MiB saving  MiB of     resume, of roof   MiB over\n"
              "case            round  load  write  mixed  read   last  last  in steps     ms      steps    adds: RSS    plan      GB/s        a fresh run", flush=True)
        plain = {case: bench.plain(case) for case in CASES}
        for round_number in range(1, 2 if arguments.quick else 4):
            for case, rounds in results.items():
                rounds.append(measure(bench, case, size, plain[case]))
                show(case, round_number, rounds[-1])
    figures = ("save_over_roof", "save_during_steps_over_roof", "read_over_roof", "save_bytes_per_s", "read_bytes_per_s")
    medians = {case: {figure: statistics.median(r[figure] for r in rounds) for figure in figures}
               | {"stop_steps": statistics.median(stop for r in rounds for stop in r["stops"]),
                  "rss_saving_adds": statistics.median(r["rss"] - r["rss_plain"] for r in rounds),
                  "plan_saving_adds": statistics.median(r["planned"] - r["planned_plain"] for r in rounds),
                  "rss_resuming_adds": statistics.median(r["rss_resumed"] - r["rss_plain"] for r in rounds)}
               for case, rounds in results.items()}
    print(json.dumps({"bytes": size, "medians": medians, "rounds": results}))


if __name__ == "__main__":
    main()
