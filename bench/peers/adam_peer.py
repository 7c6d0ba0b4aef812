"""A peer of adam_bench.py: DeepSpeed's CPUAdam or PyTorch's fused CPU AdamW, on as many threads as it is bound to cores.

usage: adam_peer.py deepspeed|torch PARAMETERS [CORE...]
       adam_peer.py --build    compiles CPUAdam, as DeepSpeed does when it is first used

Speaks as adam_turns.cpp does: one JSON object, then one for each line read. "turn NAME" answers with the seconds of each pass over
memory too, as "passes". Jobs:

  fp32            the optimizer's step, gradient in fp32
  pipeline bf16   what ZeRO with the optimizer in host memory does from a 16-bit gradient to 16-bit weights, each a pass of its own:
                  the gradient to fp32, times clip factor / loss scale, the step, the master into 16-bit weights. DeepSpeed does the
                  first on the GPU and sends fp32: "passes" tells what the rest takes.
  pipeline fp16   the same in fp16
  pipeline fp16 with norm   and before it what stage 3 does for fp16: whether any gradient is infinite, whether any is NaN
"""

import json
import os
import sys
import time

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))  # of the virtual environment
os.environ.pop("CUDA_HOME", None)  # a toolkit without a device is warned about
os.environ.pop("CXX", None)  # may be of two words, which PyTorch does not understand
os.environ.update(DS_ACCELERATOR="cpu", TORCH_EXTENSIONS_DIR=os.path.join(FOLDER, "extensions"),
                  PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])  # where ninja is

CORES = [int(core) for core in sys.argv[3:]]
if CORES:  # before any thread is started
    os.sched_setaffinity(0, CORES)
    os.environ["OMP_NUM_THREADS"] = str(len(CORES))

import numpy  # noqa: E402
import torch  # noqa: E402

PASSES = 2
SAMPLES = 65536
SCALE = 1 / 1.7
OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def first_values(n):
    """Masters and gradients, the same as in adam_turns.cpp."""
    masters, gradients = numpy.empty(n, numpy.float32), numpy.empty(n, numpy.float32)
    for first in range(0, n, 1 << 22):
        part = slice(first, min(first + (1 << 22), n))
        x = numpy.arange(part.start, part.stop, dtype=numpy.uint32) * numpy.uint32(0x9e3779b1) + numpy.uint32(0x85ebca6b)
        x = (x ^ (x >> 16)) * numpy.uint32(0x7feb352d)
        x ^= x >> 15
        masters[part] = ((x >> 8).astype(numpy.int32) - (1 << 23)).astype(numpy.float32) * numpy.float32(2.0**-27)
        gradients[part] = (2 * (x >> 24).astype(numpy.int32) - 255).astype(numpy.float32) * numpy.float32(2.0**-9)
    return torch.from_numpy(masters), torch.from_numpy(gradients)


class Peer:
    def __init__(self, name, n):
        masters, gradients = first_values(n)
        self.name, self.masters = name, masters
        # Copies, so that all memory is PyTorch's own.
        self.parameter = torch.nn.Parameter(masters.clone())
        self.parameter.grad = gradients.clone()
        self.gradients = {dtype: gradients.to(dtype) for dtype in (torch.bfloat16, torch.float16)}
        self.weights = torch.empty(n, dtype=torch.bfloat16)
        self.optimizer = self.make_optimizer()
        self.passes = {}

    def make_optimizer(self):
        if self.name == "torch":
            return torch.optim.AdamW([self.parameter], fused=True, **OPTIONS)
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        return DeepSpeedCPUAdam([self.parameter], adamw_mode=True, **OPTIONS)

    def run(self, job):
        """Seconds of each pass."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get((job.split() + [""])[1])
        if dtype is None:
            actions = {"step": self.optimizer.step}
        else:
            gradient, weights = self.gradients[dtype], self.weights.view(dtype)
            actions = {"convert": lambda: self.parameter.grad.copy_(gradient), "scale": lambda: self.parameter.grad.mul_(SCALE),
                       "step": self.optimizer.step, "copy out": lambda: weights.copy_(self.parameter.data)}
            if job.endswith("with norm"):
                actions = {"check": lambda: bool(torch.isinf(gradient).any()) or bool(torch.isnan(gradient).any()), **actions}
        passes = {}
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            passes[name] = time.perf_counter() - start
        return passes

    def turn(self, job):
        runs = [self.run(job) for _ in range(PASSES)]
        return {"seconds": [sum(run.values()) for run in runs], "passes": {name: sum(run[name] for run in runs) / PASSES for name in runs[0]}}

    def write_state(self, job, path):
        with torch.no_grad():
            self.parameter.data.copy_(self.masters)
            self.parameter.grad.copy_(self.gradients[torch.bfloat16])
            self.optimizer = self.make_optimizer()
            for _ in range(2):
                self.run(job)
            self.parameter.detach()[::self.parameter.numel() // SAMPLES].contiguous().numpy().tofile(path)
        return {}


def build():
    from deepspeed.ops.op_builder import CPUAdamBuilder
    CPUAdamBuilder().load()


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)  # what libraries print goes elsewhere
    os.dup2(2, 1)
    if sys.argv[1:] == ["--build"]:
        return build()
    with torch.no_grad():
        peer = Peer(sys.argv[1], int(sys.argv[2]))
        version = torch.__version__
        if peer.name == "deepspeed":
            import deepspeed
            version = f"{deepspeed.__version__} with PyTorch {version}"
        print(json.dumps({"version": version, "threads": torch.get_num_threads()}), file=answers)
        for line in sys.stdin:
            verb, rest = line.strip().split(" ", 1)
            print(json.dumps(peer.turn(rest) if verb == "turn" else peer.write_state(*rest.rsplit(" ", 1))), file=answers)


main()
