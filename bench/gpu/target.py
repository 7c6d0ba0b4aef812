"""What is checked: a build folder, on a card or (dry) on the simulation; and where its parts are."""

import os
import pathlib

# Where the simulated library for cuBLASLt, the runtime and NCCL is in a build folder, and the module made of it.
SIMULATED_MODULE = "tests/cuda_sim/libspillway_cuda_sim.so"
MODULE = "gpu/libspillway_cuda.so"
OUTER_LIBRARIES = "SPILLWAY_CHECK_OUTER_LIBRARIES"  # LD_LIBRARY_PATH of who started the check


class Target:
    def __init__(self, root, build, out, dry):
        self.root, self.build, self.out, self.dry = root, build, out, dry

    @classmethod
    def of_step(cls):
        """For the step that is running."""
        name = os.environ
        return cls(pathlib.Path(name["SPILLWAY_CHECK_ROOT"]), pathlib.Path(name["SPILLWAY_CHECK_BUILD"]), pathlib.Path(name["SPILLWAY_CHECK_OUT"]),
                   name["SPILLWAY_CHECK_DRY"] == "1")

    @property
    def spillway(self):
        return self.build / "app/spillway"

    @property
    def module(self):
        return self.build / (SIMULATED_MODULE if self.dry else MODULE)

    @property
    def results(self):
        return self.out / "results.json"

    def program(self, name):
        """One of bench/gpu; those that call CUDA themselves are built once for each world."""
        simulated = self.build / f"bench/gpu/{name}_sim"
        return simulated if self.dry and simulated.exists() else self.build / f"bench/gpu/{name}"

    def script(self, name):
        return self.root / "bench/gpu" / name

    def environment(self):
        """Of every step."""
        bundled = self.build / "lib" if (self.build / "lib").is_dir() else self.build / "bundle/build/lib"
        folders = [str(bundled), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        # Of a simulated device: what the engine leaves to the libraries, and enough for tiny models.
        simulated = {"CUDA_SIM_DEVICE": f"memory={(512 + 128) << 20}"} if self.dry else {}
        return {**os.environ, **simulated, "LD_LIBRARY_PATH": ":".join(folders), "SPILLWAY_CUDA_MODULE": str(self.module), "SPILLWAY_TEST_DEVICE": "cuda",
                "SPILLWAY_CHECK_ROOT": str(self.root), "SPILLWAY_CHECK_BUILD": str(self.build), "SPILLWAY_CHECK_OUT": str(self.out),
                "SPILLWAY_CHECK_DRY": str(int(self.dry)), OUTER_LIBRARIES: os.environ.get("LD_LIBRARY_PATH", ""), "PYTHONUNBUFFERED": "1"}

    def why_unusable(self):
        """What is missing, or ''."""
        for path in (self.spillway, self.module):
            if not path.exists():
                return f"no {path}; build it first where there is a compiler: meson setup build && ninja -C build"
        return ""
