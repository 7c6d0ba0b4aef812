"""The peer of nvme_bench.py: DeepSpeed's async_io moving tensors, and steps of its ZeRO stage 3 with optimizer state and gradients
on NVMe, on the CPU.

usage: nvme_peer.py FOLDER BYTES TENSOR_BYTES PARAMETERS [AIO]
       nvme_peer.py --build    compiles async_io and CPUAdam, as DeepSpeed does when they are first used

Speaks as nvme_turns.cpp does. Before it introduces itself it looks for its best "aio" section, unless it is given one: all of GRID
move tensors both ways for a moment, the best quarter of them again, and so on. Turns:

  read SECONDS, write SECONDS, mixed SECONDS   {"bytes", "seconds"}: files of TENSOR_BYTES each, a group at a time, by one handle for reads
                                               and one for writes, as its swappers do, from the first of the other half of the files than
                                               the turn before; mixed: a group is written back while the next is read
  step                                         {"step_s", "whole_s"}: engine.step() alone; with forward and backward, in which its
                                               gradients go to disk
"""

import itertools
import json
import os
import statistics
import sys
import time

HOME = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))  # of the virtual environment
os.environ.pop("CUDA_HOME", None)  # a toolkit without a device is warned about
os.environ.pop("CXX", None)  # may be of two words, which PyTorch does not understand
os.environ.update(DS_ACCELERATOR="cpu", TORCH_EXTENSIONS_DIR=os.path.join(HOME, "extensions"),
                  PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])  # where ninja is
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29518"))

import torch  # noqa: E402

GROUP = 5  # tensors: as many as the trainer's ring holds
GRID = {"block_size": (1 << 20, 8 << 20), "queue_depth": (32, 128), "intra_op_parallelism": (1, 2, 4), "single_submit": (False, True),
        "overlap_events": (True, False)}
TRIAL_S = 0.3
SIDE = 2048  # of the weights of a layer
SUB_GROUP = 16 << 20  # parameters swapped and updated at a time: of 4, 16 and 32 Mi the quickest on the development machine
BUFFERS = 14  # of a sub-group's tensors: four of the one being read, four being updated, three being written; and gradients


class Tensors:
    """Files of a tensor each, and two groups of buffers."""

    def __init__(self, folder, count, tensor_bytes):
        from deepspeed.ops.op_builder import AsyncIOBuilder
        self.make_handle = AsyncIOBuilder().load().aio_handle
        self.paths = [os.path.join(folder, f"tensor{i}") for i in range(count // GROUP * GROUP)]
        self.bytes, self.next, self.half = tensor_bytes, 0, len(self.paths) // GROUP // 2 * GROUP
        self.use({name: values[0] for name, values in GRID.items()})
        self.allocator = self.reader  # has to outlive them
        self.groups = [[self.allocator.new_cpu_locked_tensor(tensor_bytes, torch.empty(0, dtype=torch.uint8)) for _ in range(GROUP)] for _ in range(2)]
        for buffer in itertools.chain(*self.groups):
            buffer.random_(256)
        for _ in range(len(self.paths) // GROUP):  # no first write of a file is ever timed
            self.write(0, self.take())
            self.wait(self.writer)

    def use(self, settings):
        self.reader, self.writer = (self.make_handle(**settings) for _ in range(2))

    def take(self):
        first = self.next
        self.next = (first + GROUP) % len(self.paths)
        return self.paths[first:first + GROUP]

    def read(self, group, paths):
        for buffer, path in zip(self.groups[group], paths, strict=True):
            assert self.reader.async_pread(buffer, path, 0) == 0, path

    def write(self, group, paths):
        for buffer, path in zip(self.groups[group], paths, strict=True):
            assert self.writer.async_pwrite(buffer, path, 0) == 0, path

    @staticmethod
    def wait(handle):
        assert handle.wait() == GROUP

    def turn(self, name, seconds):
        start = time.perf_counter()
        self.next = 0 if self.next >= self.half else self.half
        moved, pending, paths = 0, None, None
        for group in itertools.cycle((0, 1)):
            more = time.perf_counter() - start < seconds
            if not more and pending is None:
                break
            if name != "write" and more:
                paths = self.take()
                self.read(group, paths)
            if name == "write" and more:
                self.write(group, self.take())
            if pending is not None:
                self.write(*pending)
            if name != "write" and more:
                self.wait(self.reader)
            if name == "write" or pending is not None:
                self.wait(self.writer)
            moved += self.bytes * GROUP * (more + (pending is not None))
            pending = (group, paths) if name == "mixed" and more else None
        return {"bytes": moved, "seconds": time.perf_counter() - start}

    def best_settings(self):
        candidates = [dict(zip(GRID, values)) for values in itertools.product(*GRID.values())]
        rates = {}
        while True:
            for settings in candidates:
                self.use(settings)
                moved = self.turn("mixed", TRIAL_S)
                rates.setdefault(json.dumps(settings), []).append(moved["bytes"] / moved["seconds"])
            candidates.sort(key=lambda settings: -statistics.median(rates[json.dumps(settings)]))
            if len(candidates) <= 3:
                return candidates[0]
            candidates = candidates[:(len(candidates) + 3) // 4]


class Trainer:
    """Linear layers under stage 3, its weights in memory."""

    def __init__(self, folder, parameters, aio):
        import deepspeed
        torch.manual_seed(1234)
        network = torch.nn.Sequential(*(torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(parameters // SIDE**2)))
        self.parameters = sum(parameter.numel() for parameter in network.parameters())
        self.engine, *_ = deepspeed.initialize(model=network, model_parameters=network.parameters(), config={
            "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "gradient_clipping": 1.0, "aio": aio,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
            "zero_optimization": {"stage": 3, "sub_group_size": SUB_GROUP, "offload_optimizer": {
                "device": "nvme", "nvme_path": folder, "buffer_count": BUFFERS, "pin_memory": True, "pipeline_read": True, "pipeline_write": True}}})
        self.input = torch.randn(1, SIDE, dtype=torch.bfloat16)

    def step(self):
        start = time.perf_counter()
        self.engine.backward(self.engine(self.input).float().square().mean())
        middle = time.perf_counter()
        self.engine.step()
        end = time.perf_counter()
        return {"step_s": end - middle, "whole_s": end - start}


def build():
    from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder
    AsyncIOBuilder().load()
    CPUAdamBuilder().load()


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)  # what libraries print goes elsewhere
    os.dup2(2, 1)
    if sys.argv[1:] == ["--build"]:
        return build()
    folder, file_bytes, tensor_bytes, parameters = sys.argv[1], *map(int, sys.argv[2:5])
    import deepspeed
    tensors = Tensors(folder, file_bytes // tensor_bytes, tensor_bytes)
    settings = json.loads(sys.argv[5]) if sys.argv[5:] else tensors.best_settings()
    tensors.use(settings)
    trainer = Trainer(folder, parameters, settings)
    for _ in range(2):  # the first ones write new files
        trainer.step()
    print(json.dumps({"version": f"{deepspeed.__version__} with PyTorch {torch.__version__}", "aio": settings, "sub_group_size": SUB_GROUP,
                      "parameters": trainer.parameters}), file=answers)
    for line in sys.stdin:
        name, *seconds = line.split()
        print(json.dumps(trainer.step() if name == "step" else tensors.turn(name, float(*seconds))), file=answers)


main()
