"""The architecture as a test: which folder may include which, where third-party headers may appear, and
what every source file must be. docs/architecture.md shows the same rules as a picture.

usage: architecture_test.py REPOSITORY_ROOT

Each rule is first tried on a small tree with one planted violation that it has to find, and on the same
tree without it; only then is the repository itself checked.
"""

import pathlib
import re
import sys
import tempfile

MAX_LINES = 449
LEAVES = ["config", "model", "zero", "memory", "host", "comm", "optim", "cpu_adam", "nvme", "gpu"]
REPORTING = ["checkpoint", "data", "report"]
# The planner sees descriptions of devices and disks, never one of them.
PLANNABLE = [leaf for leaf in LEAVES if leaf not in ("host", "comm", "cpu_adam", "nvme", "gpu")]

# part of the tree -> parts it may include, itself and include/ aside
ARROWS = {
    "include": [],
    "base": [],
    **{leaf: ["base"] for leaf in LEAVES},
    "plan": ["base", *PLANNABLE],
    "runtime": ["base", *LEAVES, "plan"],
    **{part: ["base", *LEAVES, "plan", "runtime", *REPORTING] for part in REPORTING},
    "app": ["base", *LEAVES, "plan", "runtime", *REPORTING],
}
EVERYTHING_BUT_APP = [part for part in ARROWS if part != "app"]
ARROWS["tests"] = ARROWS["bench"] = [*EVERYTHING_BUT_APP, "tests", "bench"]

# name, header pattern, files that may include it
FENCE = [
    ("oneTBB", r"(oneapi/)?tbb[/.].*", r"lib/base/[^/]+\.cpp"),
    ("xsimd", r"xsimd/.*", r"cpu_adam/.*"),
    ("liburing", r"liburing(\.h|/.*)", r"nvme/.*|tests/support/kernel_calls\.cpp"),
    ("libaio", r"libaio\.h", r"nvme/.*|tests/support/kernel_calls\.cpp"),
    ("BLAS", r"(.*/)?(cblas|openblas|lapacke?)[^/]*\.h", r"lib/host/[^/]+\.cpp"),
    ("CUDA", r"(cuda|vector_types|library_types|cublas|curand|cufile|cupti|nvrtc|nvml|nvtx|device_launch|cooperative_groups|mma)[^/]*\.h"
             r"|(cuda|cub|thrust|cooperative_groups|nvtx3)/.*", r"(gpu|bench/gpu|tests/cuda_sim)/.*|tests/gpu_[^/]+\.cpp"),
    ("NCCL", r"nccl[^/]*\.h", r"(gpu|bench/gpu|tests/cuda_sim)/.*"),
    ("MPI", r"mpi\.h", r"lib/comm/[^/]+\.cpp"),
    ("nlohmann/json", r"nlohmann/.*", r"(lib/(config|checkpoint|report)|tests)/[^/]+\.cpp"),
    ("CLI11", r"CLI/.*|CLI11\.hpp", r"app/.*"),
    ("fmt", r"fmt/.*", r".*\.cpp"),
    ("xxHash", r"xxhash\.h|xxh3\.h|xxh_x86dispatch\.h", r"lib/base/[^/]+\.cpp"),
    ("GoogleTest", r"(gtest|gmock)/.*", r"tests/.*"),
]
STANDARD = re.compile(r"[a-z_0-9]+")
SYSTEM = re.compile(
    r"(sys|linux|asm|arpa|net|netinet)/.*"
    r"|(aio|cpuid|dirent|dlfcn|endian|err|errno|fcntl|features|fts|getopt|glob|grp|libgen|limits|link|malloc"
    r"|mntent|poll|pthread|pwd|sched|signal|spawn|stdlib|string|strings|syscall|sysexits|termios|time|ucontext"
    r"|ucred|unistd|[a-z]?mmintrin|immintrin|x86intrin|arm_neon|arm_sve)\.h")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">]+)[">]', re.MULTILINE)

HEADERS = {".h", ".hpp", ".cuh"}
SOURCES = {".cpp", ".cu"}
CODE = HEADERS | SOURCES
SCRIPTS = {".py", ".sh", ".build"}


class Tree:
    """The files under `root` that belong to the project, by path relative to it."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.texts = {}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if re.match(r"(\.git|build[^/]*|out)(/|$)|(.*/)?__pycache__/", name) or not path.is_file():
                continue
            try:
                self.texts[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a binary fixture

    def files(self, suffixes):
        return [name for name in self.texts if pathlib.PurePosixPath(name).suffix in suffixes]

    def includes(self):
        """(file, header as written, file of the tree it means or None) for every #include line."""
        for name in self.files(CODE):
            for quote, header in INCLUDE.findall(self.texts[name]):
                yield name, quote, header, self.resolve(name, header)

    def resolve(self, name, header):
        beside = (pathlib.PurePosixPath(name).parent / header).as_posix()
        own = name.split("/")[0]  # tests/ and bench/ are include folders of their own executables, gpu/ of kernels
        for candidate in (beside, f"include/{header}", f"lib/{header}", header, f"{own}/{header}", f"gpu/{header}"):
            candidate = normal(candidate)
            if candidate in self.texts:
                return candidate
        return None


def normal(path):
    parts = []
    for part in path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def part_of(name):
    folders = name.split("/")
    return folders[1] if folders[0] == "lib" and len(folders) > 2 else folders[0]


def check_arrows(tree):
    for name, _, header, target in tree.includes():
        part, target_part = part_of(name), part_of(target) if target else None
        if part not in ARROWS:
            yield f"{name}: folder '{part}' has no place among the arrows"
        elif target and target_part not in (part, "include", *ARROWS[part]):
            yield f"{name}: {part} must not include {target_part} ({header})"


def check_plan_sees_no_device(tree):
    for name, _, header, target in tree.includes():
        if part_of(name) == "plan" and target in ("include/spillway/device.h", "include/spillway/io_engine.h"):
            yield f"{name}: plan sees descriptions, not the device or engine itself ({header})"


def check_contracts(tree):
    for name, _, header, target in tree.includes():
        if part_of(name) == "include" and not target and not STANDARD.fullmatch(header):
            yield f"{name}: contracts include the standard library and include/ only, not {header}"


def check_fence(tree):
    mpi_files = set()
    for name, _, header, target in tree.includes():
        if target:
            continue
        for library, pattern, allowed in FENCE:
            if re.fullmatch(pattern, header):
                if not re.fullmatch(allowed, name):
                    yield f"{name}: {library} ({header}) only in {allowed}"
                elif library == "MPI":
                    mpi_files.add(name)
    for name in sorted(mpi_files)[1:]:
        yield f"{name}: MPI only in one file, and {min(mpi_files)} has it"


def check_known_headers(tree):
    for name, quote, header, target in tree.includes():
        known = STANDARD.fullmatch(header) or SYSTEM.fullmatch(header)
        if target or known or any(re.fullmatch(pattern, header) for _, pattern, _ in FENCE):
            continue
        if quote == '"':
            yield f'{name}: "{header}" is no file of this tree'
        else:
            yield f"{name}: <{header}> is of no library the fence knows; add a row that says where it may be used"


def check_sources_are_built(tree):
    for name in tree.files(SOURCES):
        folder = pathlib.PurePosixPath(name).parent
        if part_of(name) in ("tests", "bench", "include"):
            continue
        while f"{folder}/meson.build" not in tree.texts and folder.name:
            folder = folder.parent
        listed = re.sub(r"#.*", "", tree.texts.get(f"{folder}/meson.build", ""))
        if f"'{pathlib.PurePosixPath(name).relative_to(folder)}'" not in listed:
            yield f"{name}: not in the list of {folder}/meson.build"


def check_tests_are_run(tree):
    rows = "".join(re.sub(r"#.*", "", text) for name, text in tree.texts.items() if re.fullmatch(r"tests/(\w+/)?meson\.build", name))
    for name in tree.files(CODE | SCRIPTS):
        match = re.fullmatch(r"tests/(.+)_test\.(cpp|cu|py)", name)
        if match and not re.search(rf"'(\.\./)?{match[1]}(_test\.{match[2]})?'", rows):
            yield f"{name}: no row of a meson.build in tests runs it"


def check_lengths(tree):
    for name in tree.files(CODE | SCRIPTS):
        lines = tree.texts[name].count("\n")
        if lines > MAX_LINES:
            yield f"{name}: {lines} lines, at most {MAX_LINES}; split it by what it does"


def check_paths(tree):
    absolute = re.compile(r"(?<![\w./~$})*-])/(?:work|root|home)(?=[/\s\"'`),;:]|$)", re.MULTILINE)
    for name, text in tree.texts.items():
        for match in absolute.finditer(text):
            yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: a path of one machine, {match[0]}"


def check_pragma_once(tree):
    for name in tree.files(HEADERS):
        if not re.search(r"^#pragma once$", tree.texts[name], re.MULTILINE):
            yield f"{name}: no #pragma once"


RULES = [check_arrows, check_plan_sees_no_device, check_contracts, check_fence, check_known_headers,
         check_sources_are_built, check_tests_are_run, check_lengths, check_paths, check_pragma_once]

# A header of each part, every library where it belongs, and every kind of file that a rule looks at.
GOOD_TREE = {
    **{f"{folder}/{folder.split('/')[-1]}.h": "#pragma once\n#include <vector>\n#include <sys/stat.h>\n"
       for folder in ["lib/base", *(f"lib/{leaf}" for leaf in LEAVES if leaf not in ("cpu_adam", "nvme", "gpu")),
                      "cpu_adam", "nvme", "gpu", "lib/plan", "lib/runtime", "lib/checkpoint", "lib/data",
                      "lib/report", "app"]},
    "include/spillway/device.h": "#pragma once\n#include <cstdint>\n#include \"spillway/dtype.h\"\n",
    "include/spillway/dtype.h": "#pragma once\n",
    "lib/base/parallel.cpp": "#include <oneapi/tbb/parallel_for.h>\n#include <xxhash.h>\n#include \"base/base.h\"\n",
    "lib/base/meson.build": "library('base', 'parallel.cpp')\n",
    "lib/zero/zero.cpp": "#include \"zero.h\"\n#include \"base/base.h\"\n#include \"spillway/device.h\"\n",
    "lib/zero/meson.build": "# 'gone.cpp'\nlibrary('zero', 'zero.cpp')\n",
    "lib/comm/mpi.cpp": "#include <mpi.h>\n",
    "lib/comm/meson.build": "library('comm', 'mpi.cpp')\n",
    "lib/plan/lower.h": "#pragma once\n#include \"zero/zero.h\"\n#include \"model/model.h\"\n",
    "lib/runtime/engine.h": "#pragma once\n#include \"plan/plan.h\"\n#include \"host/host.h\"\n",
    "lib/report/ledger.h": "#pragma once\n#include \"runtime/runtime.h\"\n#include \"data/data.h\"\n",
    "tests/zero_test.cpp": "#include <gtest/gtest.h>\n#include <fmt/format.h>\n#include \"zero/zero.h\"\n",
    "tests/support/check.h": "#pragma once\n#include \"support/check.h\"\n",
    "tests/meson.build": "units = [['zero', [zero], 'fast']]\n",
    "run.sh": "cat ./" + "work/x $dir/" + "root/y\n",
}

# rule -> what to lay over GOOD_TREE; the rule must find one violation, in the first file named
PLANTS = {
    check_arrows: [
        {"lib/base/bad.h": "#pragma once\n#include \"zero/zero.h\"\n"},
        {"lib/model/bad.h": "#pragma once\n#include \"../zero/zero.h\"\n"},
        {"lib/zero/bad.h": "#pragma once\n#include \"plan/plan.h\"\n"},
        {"nvme/bad.h": "#pragma once\n  #  include \"cpu_adam/cpu_adam.h\"\n"},
        {"cpu_adam/bad.h": "#pragma once\n#include <host/host.h>\n"},
        {"lib/plan/bad.h": "#pragma once\n#include \"runtime/runtime.h\"\n"},
        {"lib/plan/bad.h": "#pragma once\n#include \"host/host.h\"\n"},
        {"lib/runtime/bad.h": "#pragma once\n#include \"report/report.h\"\n"},
        {"lib/report/bad.h": "#pragma once\n#include \"app/app.h\"\n"},
        {"tests/bad.h": "#pragma once\n#include \"app/app.h\"\n"},
        {"include/spillway/bad.h": "#pragma once\n#include \"base/base.h\"\n"},
        {"lib/utils/bad.h": "#pragma once\n#include <vector>\n"},
    ],
    check_plan_sees_no_device: [{"lib/plan/bad.h": "#pragma once\n#include \"spillway/device.h\"\n"}],
    check_contracts: [{"include/spillway/bad.h": f"#pragma once\n#include <{header}>\n"}
                      for header in ("fmt/format.h", "unistd.h")],
    check_fence: [
        {"lib/runtime/bad.cpp": "#include <tbb/task_group.h>\n"},
        {"lib/base/bad.h": "#include <oneapi/tbb/task_group.h>\n"},
        {"lib/optim/bad.cpp": "#include <xsimd/xsimd.hpp>\n"},
        {"lib/runtime/bad.cpp": "#include <liburing.h>\n"},
        {"lib/runtime/bad.cpp": "#include <libaio.h>\n"},
        {"lib/host/bad.h": "#include <cblas.h>\n"},
        {"cpu_adam/bad.cpp": "#include <openblas/cblas.h>\n"},
        {"lib/host/bad.cpp": "#include <cuda_runtime.h>\n"},
        {"lib/host/bad.cpp": "#include <cublasLt.h>\n"},
        {"lib/host/bad.cpp": "#include <cub/block/block_reduce.cuh>\n"},
        {"lib/comm/bad.cpp": "#include <nccl.h>\n"},
        {"lib/runtime/bad.cpp": "#include <mpi.h>\n", "lib/comm/mpi.cpp": ""},
        {"lib/comm/second.cpp": "#include <mpi.h>\n"},
        {"lib/config/bad.h": "#include <nlohmann/json.hpp>\n"},
        {"lib/runtime/bad.cpp": "#include \"nlohmann/json_fwd.hpp\"\n"},
        {"lib/config/bad.cpp": "#include <CLI/CLI.hpp>\n"},
        {"lib/base/bad.h": "#include <fmt/core.h>\n"},
        {"nvme/bad.cpp": "#include <xxhash.h>\n"},
        {"lib/base/bad.cpp": "#include <gmock/gmock.h>\n"},
    ],
    check_known_headers: [{"lib/base/bad.h": "#include <boost/asio.hpp>\n"},
                          {"lib/base/bad.h": "#include \"base/gone.h\"\n"}],
    check_sources_are_built: [{"lib/zero/gone.cpp": ""}, {"gpu/kernel.cu": ""}, {"lib/zero/deep/zero.cpp": ""}],
    check_tests_are_run: [{"tests/forgotten_test.cpp": ""}, {"tests/forgotten_test.py": ""}],
    check_lengths: [{"lib/base/bad.h": "#pragma once\n" + "\n" * MAX_LINES}, {"bad.sh": "\n" * (MAX_LINES + 1)}],
    check_paths: [{"configs/bad.json": f'{{"nvme_path": "/{folder}/x"}}'} for folder in ("work", "root", "home")]
                 + [{"bad.md": "cd /" + "root\n"}],
    check_pragma_once: [{"lib/base/bad.h": "// #pragma once\n"}, {"gpu/bad.cuh": ""}],
}


def violations_in(files, rule):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return list(rule(Tree(folder)))


def wrong_way_includes():
    """{file: text} with one file for every pair of parts that may not include each other by layer."""
    layers = [["include"], ["base"], LEAVES, ["plan"], ["runtime"], REPORTING, ["app"]]
    level = {part: number for number, layer in enumerate(layers) for part in layer}
    folder = {part_of(name): str(pathlib.PurePosixPath(name).parent) for name in GOOD_TREE if name.endswith(".h")}
    return {f"{folder[part]}/to_{target}.h": f"#include \"{target}/{target}.h\"\n"
            for part in level for target in level
            if level[target] > level[part] or (target != part and {target, part} <= set(LEAVES))}


def self_test():
    """What is wrong with the rules themselves."""
    planted = wrong_way_includes()
    missed = set(planted) - {found.split(":")[0] for found in violations_in(GOOD_TREE | planted, check_arrows)}
    if missed:
        yield f"self-test: check_arrows does not find {', '.join(sorted(missed))}"
    for rule in RULES:
        for violation in violations_in(GOOD_TREE, rule):
            yield f"self-test: {rule.__name__} objects to a tree without fault: {violation}"
        if not PLANTS.get(rule):
            yield f"self-test: {rule.__name__} has no planted violation"
        for plant in PLANTS.get(rule, []):
            found = violations_in(GOOD_TREE | plant, rule)
            if len(found) != 1 or not found[0].startswith(next(iter(plant)) + ":"):
                yield f"self-test: {rule.__name__} should find one violation in {plant}, found {found}"
    for library, pattern, _ in FENCE:
        headers = [header for plant in PLANTS[check_fence] for text in plant.values()
                   for _, header in INCLUDE.findall(text)]
        if not any(re.fullmatch(pattern, header) for header in headers):
            yield f"self-test: no planted violation for the fence around {library}"


def main():
    problems = list(self_test())
    tree = Tree(sys.argv[1])
    if not tree.files(CODE):
        problems.append(f"{sys.argv[1]}: no source file found; is this the root of the repository?")
    for rule in RULES:
        problems.extend(rule(tree))
    print("\n".join(problems) or f"{len(RULES)} rules hold in {len(tree.texts)} files")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
