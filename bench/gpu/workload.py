"""Runs of the spillway program: their inputs, made up the same everywhere, and what they have measured."""

import json
import os
import pathlib
import statistics
import subprocess
import sys

from step import SKIPPED

MEMORY_REFUSED = 4  # exit status of spillway when a plan does not fit


def skip(reason):
    print(reason)
    sys.exit(SKIPPED)


def work_folder():
    """Removed after the step."""
    return pathlib.Path(os.environ["SPILLWAY_CHECK_WORK"])


def numbers(seed):
    """Knuth's MMIX generator, its upper half: the same on every machine and for ever."""
    while True:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        yield seed >> 32


def write_text(path, num_bytes):
    """Words of a small vocabulary, the earlier ones more often: something a model can learn."""
    chance = numbers(1)
    words = ["".join("etaoinshrdlu"[next(chance) % 12] for _ in range(2 + next(chance) % 6)) for _ in range(80)]
    text = ""
    while len(text) < num_bytes:
        text += words[min(next(chance) % 80, next(chance) % 80)] + " "
    path.write_text(text[:num_bytes])
    return path


def write_tokens(path, count, vocabulary):
    """As nanoGPT has them: little-endian uint16."""
    block = b"".join((number % vocabulary).to_bytes(2, "little") for number, _ in zip(numbers(2), range(min(count, 1 << 16))))
    with open(path, "wb") as file:
        for _ in range(-(-2 * count // len(block))):
            file.write(block)
    return path


def write_json(path, content):
    path.write_text(json.dumps(content, indent=1))
    return path


def config(placement, micro_batch, accumulation=1, dtype="bf16", **spillway):
    """DeepSpeed's configuration of a run whose state is in device memory (none), all in host memory (cpu) or on disk (nvme),
    or whose optimizer alone is in host memory (optimizer)."""
    devices = {"none": {}, "optimizer": {"offload_optimizer": "cpu"}, "cpu": {"offload_param": "cpu", "offload_optimizer": "cpu"},
               "nvme": {"offload_param": "nvme", "offload_optimizer": "nvme"}}[placement]
    offload = {key: {"device": device, **({"nvme_path": str(work_folder())} if device == "nvme" else {})} for key, device in devices.items()}
    precision = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    return {"train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": accumulation, "gradient_clipping": 1.0, **precision,
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
            "zero_optimization": {"stage": 3, **offload}, "spillway": spillway}


class Run:
    """One `spillway train` that ended well."""

    def __init__(self, summary, records):
        self.summary = summary
        self.steps = [record for record in records if record["record"] == "step"]
        self.start = next(record for record in records if record["record"] == "start")

    @property
    def losses(self):
        return [step["loss"] for step in self.steps]

    def figures(self):
        """Medians over the steps after the first two, which fill the pipeline."""
        steady = self.steps[2:] or self.steps
        step_ms = statistics.median(step["step_ms"] for step in steady)
        lanes = {lane: statistics.median(step["lanes_busy_ms"].get(lane, 0.0) for step in steady) for lane in steady[-1]["lanes_busy_ms"]}
        busiest = max(lanes, key=lanes.get, default=None)
        tokens = self.start["train_batch_size"] * self.start["sequence_length"]
        return {"tokens_per_step": tokens, "tokens_per_s": tokens / step_ms * 1e3, "step_ms": step_ms, "busy_ms": lanes, "busiest_lane": busiest,
                "step_over_busiest": step_ms / lanes[busiest] if busiest and lanes[busiest] else None,
                "predicted_over_measured": self.start["predicted_step_ms"] / step_ms, "predicted_binding_lane": self.start["binding_lane"],
                "micro_batch": self.start["micro_batch_size"], "accumulation": self.start["accumulation_steps"], "params": self.start["params"],
                "peak_bytes": {tier: peak["used"] for tier, peak in self.summary["peak"].items()}}


class Spillway:
    def __init__(self, target, device="cuda"):
        self.target, self.device = target, device

    def arguments(self, command, run_config, model, data, sequence_length, steps):
        path = write_json(work_folder() / "config.json", run_config)
        return [str(self.target.spillway), command, "--device", self.device, "--config", str(path), "--model", str(model), "--data", str(data),
                "--sequence-length", str(sequence_length), "--steps", str(steps)]

    def train(self, run_config, model, data, sequence_length, steps):
        """Ends the step with what the program says if it fails."""
        summary, metrics = work_folder() / "summary.json", work_folder() / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        command = [*self.arguments("train", run_config, model, data, sequence_length, steps), "--seed", "1234", "--summary", str(summary),
                   "--metrics", str(metrics)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stdout}exit status {done.returncode}")
        return Run(json.loads(summary.read_text()), [json.loads(line) for line in metrics.read_text().splitlines()])

    def why_too_large(self, run_config, model, data, sequence_length):
        """What the plan says of a run that does not fit, or ''."""
        done = subprocess.run(self.arguments("plan", run_config, model, data, sequence_length, 1), capture_output=True, text=True, check=False)
        if done.returncode == MEMORY_REFUSED:
            return next((line for line in done.stderr.splitlines() if line.strip()), "does not fit")
        if done.returncode != 0:
            sys.exit(f"spillway plan: exit status {done.returncode}\n{done.stderr}")
        return ""
