"""Plants each mistake of cuda_sim/mutations.toml, alone, and sees a test that passes without it fail.

usage: mutation_test.py BUILD_FOLDER plain|tsan
A mutant is one changed file, compiled as the build compiles it but for -O1, and linked into a module, or a test program,
of its own under BUILD_FOLDER/tests/mutants. Nothing of the source or of the build is touched.
"""

import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
import unittest

TESTS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))
from support import tap

SOURCE = TESTS.parent
BUILD = pathlib.Path(sys.argv[1]).resolve()
KIND_OF_BUILD = sys.argv[2]
LIST = TESTS / "cuda_sim" / "mutations.toml"
MODULE = "tests/cuda_sim/libspillway_cuda_sim.so"
KINDS = {"event wait", "barrier", "guard", "copy", "order", "failure", "request"}
AT_ONCE = 2
# What hangs is not caught: a mistake has to be told, and a wait for ever says nothing.
TIMEOUT_S = 120
# Where headers are looked for: what is changed in one of these stands before what the build has.
INCLUDED = ("tests/cuda_sim", "tests", "gpu", "lib", ".")
ENVIRONMENT = {"SPILLWAY_TEST_DEVICE": "cuda", "CUDA_SIM_DEVICE": "count=4,memory=1073741824"}
SANITIZERS = {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66"}


def run(command, **arguments):
    return subprocess.run(command, cwd=BUILD, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **arguments)


def tail(text):
    return "\n".join(text.splitlines()[-15:])


def require_success(what, command):
    done = run(command)
    if done.returncode != 0:
        raise RuntimeError(f"{what} failed with {done.returncode}:\n{tail(done.stdout)}")


@functools.cache
def compilations():
    return {entry["output"]: entry["command"] for entry in json.loads((BUILD / "compile_commands.json").read_text())}


@functools.cache
def link_command(target):
    """As words. Meson may have put the long ones into a response file, which ninja shows only as such."""
    words = shlex.split(run(["ninja", "-t", "commands", target]).stdout.splitlines()[-1])
    response = next((word[1:] for word in words if word.startswith("@")), None)
    if response is not None:
        raise RuntimeError(f"{target} is linked by way of {response}, which this test does not read")
    return words


class Mutant:
    def __init__(self, entry):
        self.entry = entry
        self.name = entry["name"]
        self.file = entry["file"]
        self.compiled = entry.get("compiled", self.file)
        self.folder = BUILD / "tests" / "mutants" / re.sub(r"\W+", "_", self.name)
        (program,) = [found for folder in (".", "*") for found in (BUILD / "tests").glob(f"{folder}/{entry['test']}_test")]
        self.program = str(program.relative_to(BUILD))

    def in_module(self):
        return not self.compiled.startswith("lib/")

    def write(self):
        text = (SOURCE / self.file).read_text()
        found = text.count(self.entry["find"])
        if found != 1:
            raise RuntimeError(f"{self.file} has {found} times, and not once:\n{self.entry['find']}")
        changed = self.folder / self.file
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_text(text.replace(self.entry["find"], self.entry["replace"]))

    def compile(self):
        """The object that the build has, and what stands for it."""
        source = self.folder / self.compiled
        if not source.exists():
            source = SOURCE / self.compiled
        ending = f"gpu_{source.name}.o" if self.compiled.startswith("gpu/") and source.suffix == ".cpp" else f"{source.stem}.cu.cpp.o"
        owner = MODULE + ".p/"
        if not self.in_module():
            ending, owner = f"{source.name}.o", str(pathlib.Path(self.compiled).parent) + "/"
        (original,) = [output for output in compilations() if output.startswith(owner) and re.search(rf"[/_-]{re.escape(ending)}$", output)]
        if source.suffix == ".cu":
            wrapper = self.folder / f"{source.stem}.cu.cpp"
            wrapper.write_text(f'#include "{source}"\n')
            source = wrapper
        made = self.folder / "mutant.o"
        words = shlex.split(compilations()[original])
        words[words.index("-o") + 1] = str(made)
        words[words.index("-c") + 1] = str(source)
        words[words.index("-MF") + 1] = str(made) + ".d"
        words = [word for word in words if word != "-Werror" and not re.fullmatch("-O[0-9sg]?", word)]
        first = next(i for i, word in enumerate(words) if word.startswith("-I"))
        words[first:first] = [f"-I{self.folder / included}" for included in INCLUDED]
        require_success(f"compiling {self.file}", words + ["-w", "-O1"])
        return original, made

    def link(self, original, made):
        """The module or program with the mutant in it."""
        target = MODULE if self.in_module() else self.program
        linked = self.folder / pathlib.Path(target).name
        words = link_command(target)
        output = words.index("-o")
        # A program takes it before it looks into its libraries.
        objects = [str(made) if word == original else word for word in words[output + 2:]]
        if original not in words:
            objects.insert(0, str(made))
        require_success(f"linking {target}", words[:output] + ["-o", str(linked)] + objects +
                        [f"-Wl,-rpath,{BUILD / pathlib.Path(MODULE).parent}", f"-Wl,-rpath,{BUILD / 'tests'}"])
        return linked

    def build(self):
        self.write()
        return self.link(*self.compile())


def tried(program, module, test_filter, mode):
    """The filtered tests of a program with a module: (status or None if it did not end, what it printed)."""
    environment = dict(os.environ, **ENVIRONMENT, **SANITIZERS, SPILLWAY_CUDA_MODULE=str(module), **dict(mode))
    try:
        done = run([str(program), f"--gtest_filter={test_filter}", "--gtest_brief=1", "--gtest_fail_fast"], env=environment, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as expired:
        return None, (expired.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout


@functools.cache
def passes_unchanged(program, test_filter, mode):
    status, output = tried(BUILD / program, BUILD / MODULE, test_filter, mode)
    ran = re.search(r"\[  PASSED  \] (\d+) test", output)
    return status == 0 and ran is not None and int(ran[1]) > 0, output


def examine(entry):
    """Why the entry is not as it should be; None if it is."""
    mutant = Mutant(entry)
    mode = tuple((key, value.replace("@SOURCE@", str(SOURCE))) for key, value in sorted(entry.items()) if key.startswith("CUDA_SIM_"))
    sound, output = passes_unchanged(mutant.program, entry["filter"], mode)
    if not sound:
        return f"{mutant.program} {entry['filter']} does not pass as it is:\n{tail(output)}"
    linked = mutant.build()
    program, module = (BUILD / mutant.program, linked) if mutant.in_module() else (linked, BUILD / MODULE)
    if mutant.in_module():
        # A module that cannot be opened fails any test.
        status, output = tried(BUILD / "tests/device/gpu_device_test", module, "Device.HasAName", ())
        if status != 0:
            return f"the changed module cannot be used at all:\n{tail(output)}"
    status, output = tried(program, module, entry["filter"], mode)
    if status is None:
        return f"{mutant.program} {entry['filter']} did not end within {TIMEOUT_S} s:\n{tail(output)}"
    if status == 0:
        return f"{mutant.program} {entry['filter']} passes: the mistake is not caught"
    return None


class TheList(unittest.TestCase):
    def test_names_every_mistake_once_and_says_its_kind(self):
        names = [entry["name"] for entry in ENTRIES]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual({entry["kind"] for entry in ENTRIES}, KINDS)


class Caught(unittest.TestCase):
    """A case for each entry of the list, added below."""


def add_case(entry, outcome):
    def case(self):
        self.assertIsNone(outcome.result(), entry["name"])
    setattr(Caught, f"test_{entry['kind']}: {entry['name']}", case)


ENTRIES = tomllib.loads(LIST.read_text())["mutation"]

if __name__ == "__main__":
    wanted = sys.argv[3:]  # by name, to work on some
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        chosen = [e for e in ENTRIES if e.get("tsan", False) == (KIND_OF_BUILD == "tsan") and (not wanted or any(w in e["name"] for w in wanted))]
        for entry in sorted(chosen, key=lambda e: f"{e['kind']}: {e['name']}"):
            add_case(entry, pool.submit(examine, entry))
        tap.main()
