"""The program as its user has it: a scratch folder with a text and configurations, and runs of the executable.

The scratch folder lies under the current one (a build folder: on a disk, which /tmp need not be).
"""

import copy
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

SPILLWAY = str(pathlib.Path(sys.argv[1]).resolve())
TIMEOUT_S = 300

BASE_CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "spillway": {"tile_size": 16384, "threads": 2},
}

# Rates a run need not measure: what is tested here does not depend on them, and starting is quicker.
PROFILE = {"matmul_flops": 5e10}


def merged(base, changes):
    """A copy of `base` with the keys of `changes` set, section by section."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        result[key] = merged(result.get(key, {}), value) if isinstance(value, dict) else copy.deepcopy(value)
    return result


def offload(param=None, optimizer=None, path="."):
    """The zero_optimization section that puts each on its device."""
    section = {}
    for key, device in (("offload_param", param), ("offload_optimizer", optimizer)):
        if device:
            section[key] = {"device": device, **({"nvme_path": path} if device == "nvme" else {})}
    return {"zero_optimization": section}


ON_NVME = offload("nvme", "nvme")


def everything_on_nvme(paths):
    """Weights, optimizer state, gradients and activations, over these folders."""
    return merged(offload("nvme", "nvme", paths), {"spillway": {"offload_gradients": "nvme", "offload_activations": "nvme"}})


def text(num_bytes, seed=1):
    """Words of a small vocabulary: something a model can learn."""
    chance = random.Random(seed)
    words = ["".join(chance.choice("etaoinshrdlu") for _ in range(chance.randint(2, 7))) for _ in range(80)]
    return " ".join(chance.choice(words) for _ in range(num_bytes // 3))[:num_bytes - 1] + "\n"


class Run:
    def __init__(self, completed):
        self.status = completed.returncode
        self.out = completed.stdout
        self.err = completed.stderr


class CliTest(unittest.TestCase):
    """Each case gets a scratch folder of its own, and a leftover in it is the case's to look for."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="scratch-", dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.write("text.txt", text(20_000))
        self.write("profile.json", json.dumps(PROFILE))

    def path(self, name):
        return self.folder / name

    def write(self, name, content):
        mode = "wb" if isinstance(content, bytes) else "w"
        with open(self.path(name), mode) as file:
            file.write(content)
        return name

    def flip(self, name, offset):
        """Flips a bit of a file."""
        with open(self.path(name), "r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1]))

    def config(self, *changes, name="config.json"):
        config = merged(BASE_CONFIG, {"spillway": {"profile": "profile.json"}})
        for change in changes:
            config = merged(config, change)
        return self.write(name, json.dumps(config, indent=1))

    def arguments(self, command, config, *more, model="gpt2-tiny", data=("text.txt",), steps=3):
        return [SPILLWAY, command, "--config", config, "--model", model, "--data", *data, "--steps", str(steps), *more]

    def spillway(self, *arguments, env=None, prefix=()):
        return self.run_command([*prefix, SPILLWAY, *arguments], env)

    def run_command(self, command, env=None):
        return Run(subprocess.run(command, cwd=self.folder, env={**os.environ, **(env or {})}, timeout=TIMEOUT_S,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False))

    def train(self, config, *more, env=None, **inputs):
        """A run that has to end well; its summary."""
        run = self.run_command(self.arguments("train", config, "--summary", "summary.json", *more, **inputs), env)
        self.assertEqual(run.status, 0, run.err)
        return self.load("summary.json")

    def plan(self, config, *more, **inputs):
        run = self.run_command(self.arguments("plan", config, "--json", *more, **inputs))
        self.assertEqual(run.status, 0, run.err)
        return json.loads(run.out)

    def load(self, name):
        return json.loads(self.path(name).read_text())

    def metrics(self, name="metrics.jsonl"):
        """The records of a metrics file of which every line is whole."""
        content = self.path(name).read_text()
        self.assertTrue(content.endswith("\n"), "the last line is not whole")
        return [json.loads(line) for line in content.splitlines()]

    def assert_refused(self, run, status, *words):
        """Refused with this exit status, and one text, the last on stderr, with each of the words."""
        self.assertEqual(run.status, status, run.err)
        error = run.err[run.err.rfind("spillway: "):]
        self.assertTrue(error.startswith("spillway: ") and error.endswith("\n"), run.err)
        for word in words:
            self.assertIn(word, error)
        self.assertNotIn("terminate called", run.err)

    def assert_same_files(self, before):
        self.assertEqual(before, self.files(), "something was left behind")

    def files(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))
