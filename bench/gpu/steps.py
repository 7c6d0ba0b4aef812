"""The steps of the check, in order of value: what would spoil everything after it comes first, what costs most time last."""

import os
import pathlib
import sys

from step import Step

PLANTED = ("hang", "crash")
SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck")
PLACEMENTS = ("none", "cpu", "nvme")


def planned(target, plants=()):
    def script(name, what, file, limit_s, *arguments):
        return Step(name, what, [sys.executable, target.script(file), *arguments], limit_s)

    def program(name, what, limit_s, *arguments, file=None):
        return Step(name, what, [target.program(file or name), *arguments], limit_s)

    tiny = ["--quick"] if target.dry else []
    return [
        *planted(plants),
        script("doctor", "versions, and what spillway doctor says of the machine", "doctor.py", 60),
        program("smoke", "a copy each way, a kernel and an event", 30),
        *kernel_tests(target),
        script("gemm_support", "which products cuBLASLt accepts, and whether they are right", "gemm_table.py", 60, target.program("gemm_support")),
        program("stream_stress", "the same sums however long host functions hold the streams up", 30, *tiny),
        program("nccl_one_rank", "collectives of one rank, and an abort", 40, *tiny),
        script("losses", "losses of the tiny model, beside the host device's", "losses.py", 60),
        script("placements", "the same state wherever it is kept", "placements.py", 60),
        *engine_tests(target),
        *(script(tool, f"compute-sanitizer's {tool} over the kernel tests", "sanitizer.py", 35, tool) for tool in SANITIZER_TOOLS),
        program("matmul_roof", "the quickest product cuBLASLt has", 30, *tiny),
        program("link", "copies between host and device beside plain cudaMemcpyAsync", 30, *tiny),
        program("adam", "the optimizer on device and host beside their memories", 40, *tiny),
        *(script(f"throughput_{placement}", f"tokens/s over tokens a step, offload {placement}", "throughput.py", 70, placement)
          for placement in PLACEMENTS),
        script("large_model", "the largest model whose state fits in host memory, up to 8 B parameters", "large_model.py", 240),
        script("peers", "PyTorch and DeepSpeed, the same model, batch and precision", "peers.py", 120),
    ]


def programs(target):
    """What was built and is run, relative to the build folder."""
    words = [word for step in planned(target) for word in step.command if isinstance(word, pathlib.Path)]
    return sorted({path.relative_to(target.build) for path in [target.spillway, target.module, *words] if target.build in path.parents})


def planted(plants):
    commands = {"hang": "import time; print('{\"planted\": true}', flush=True); time.sleep(1000)", "crash": "import os; os.abort()"}
    return [Step(f"planted_{plant}", "goes wrong on purpose", [sys.executable, "-c", commands[plant]], 2) for plant in plants]


def kernel_tests(target):
    """Those that tests/ builds for either device: the ones of the device first, then of the kernels."""
    paths = [path for pattern in ("gpu_*_test", "ops_*_test") for path in sorted(target.build.glob(f"tests/device/{pattern}"))]
    return [test_program(target, path, "device and kernels against their references", 30) for path in paths if runs_here(target, path)]


def engine_tests(target):
    """Of those that train in process, the ones of a single rank."""
    paths = [target.build / f"tests/{name}_test" for name in ("invariance", "runtime_engine", "engine_fault", "snapshot")]
    return [test_program(target, path, "the engine in process", 30) for path in paths if path.exists()]


def test_program(target, path, what, limit_s):
    return Step(path.name.replace("_test", ""), what, [sys.executable, target.script("gtest.py"), path], limit_s)


def runs_here(target, path):
    """What is linked to the simulation itself is of no use on a card, nor the other way round."""
    with open(path, "rb") as program:
        content = program.read()
    return os.access(path, os.X_OK) and b"libcuda_sim.so" not in content and not (target.dry and b"libcudart.so" in content)
