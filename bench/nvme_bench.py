#!/usr/bin/env python3
"""The NVMe tier beside fio and DeepSpeed on the same disk.

  read_over_fio, write_over_fio   rate of optimizer tiles through the swap store / fio's of the same kind, in the same file, with the
                                  same engine, block and depth
  mixed_over_fio                  tiles read and written back, as in a step / fio's rate of sequential reads and writes in equal shares
  ring_over_fio                   the trainer's ring in a real step: tiles read, verified, updated, checksummed and written / fio's mixed
                                  rate
  raw_over_deepspeed              rate of tiles read and written back / DeepSpeed's async_io doing the same; with read_ and write_
                                  before it: of the one alone
  step_over_deepspeed             its time of a whole step with optimizer state and gradients on disk / ours, of as many parameters
  update_over_deepspeed           its engine.step() alone / ours from the gate on, nothing else going on

A round is A-B-A: fio, ours, DeepSpeed, ours, fio, kind by kind; a figure is the median of the rounds' ratios of means. Each round has new
processes and new files, as fio is a new process each turn: nobody keeps for all rounds the memory and the place on the disk that it was
given once. All begin a turn at the start of one half of their file or of the other, so that none moves blocks that were touched longer ago
than the others'. What is read or written in a turn has been written before. fio opens the swap file itself; what it has written over is
written again before it is read. Without the peer (bench/peers/install.sh) its figures are null. Takes 20 GiB of the disk.

The last line of the output is one JSON object.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from turn_process import TurnProcess, peers_python

PROGRAM = "bench/nvme_turns"
HERE = pathlib.Path(__file__).resolve().parent
FILE_BYTES = 8 << 30  # half of it is more than anyone moves in a turn: nothing is moved twice in one, out of some cache
TURN_S = 1.0
STEPS = 2  # timed in a turn
# A request on pages of 4 KiB may be of more segments than the disk takes at a time, and is split then. Ours has huge pages, so the others
# are given them: by the C library, and by PyTorch.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
FIO_KINDS = {"read": "read", "write": "write", "mixed": "rw"}


class Fio:
    """In the swap file of `ours`, each turn in the other half of it, as the others do in theirs."""

    def __init__(self, ours, environment):
        about = ours.introduction
        self.name, self.ours, self.environment = "fio", ours, environment
        self.turns, self.wrote = 0, False
        self.begin, self.half = about["tiles_begin"], FILE_BYTES // 2 // about["tile_bytes"] * about["tile_bytes"]
        self.command = ["fio", "--name=bench", f"--filename={about['tiles_file']}", "--allow_file_create=0", "--direct=1",
                        f"--ioengine={about['engine']}", f"--bs={about['block_bytes']}", f"--iodepth={about['depth']}", "--invalidate=0",
                        "--fallocate=none", "--output-format=json"]
        if about["engine"] == "io_uring":
            self.command += ["--fixedbufs=1", "--registerfiles=1"]

    def ask(self, line):
        kind, seconds = line.split()
        self.turns += 1
        self.wrote = self.wrote or kind != "read"
        options = [f"--offset={self.begin + self.turns % 2 * self.half}", f"--size={self.half}", f"--rw={FIO_KINDS[kind]}", "--rwmixread=50",
                   "--time_based", f"--runtime={round(1e3 * float(seconds))}ms"]
        answer = subprocess.run([*self.command, *options], stdout=subprocess.PIPE, text=True, check=False, env=self.environment)
        if answer.returncode != 0:
            sys.exit(f"fio ended with status {answer.returncode}: {answer.stdout}")
        job = json.loads(answer.stdout)["jobs"][0]
        return {"bytes": job["read"]["io_bytes"] + job["write"]["io_bytes"], "seconds": max(job["read"]["runtime"], job["write"]["runtime"]) * 1e-3}

    def make_good(self):
        """To be called before tiles are read: they are as they were."""
        if self.wrote:
            self.ours.ask("restore")
        self.wrote = False


class Rounds:
    """Values by contender and kind, one a round: the mean of that round's turns."""

    def __init__(self):
        self.values = {}

    def add(self, values):
        for key, found in values.items():
            self.values.setdefault(key, []).append(statistics.mean(found))

    def ratio(self, dividend, divisor):
        if dividend not in self.values or divisor not in self.values:
            return None
        return statistics.median(a / b for a, b in zip(self.values[dividend], self.values[divisor], strict=True))

    def show(self, key, unit, scale):
        values = self.values[key]
        print(f"  {' '.join(key):<28} {scale * statistics.median(values):8.3f} {unit} ({scale * min(values):.3f} to {scale * max(values):.3f})")


def rate(moved):
    return moved["bytes"] / moved["seconds"]


def raw_turns(values, order, kind, fio):
    for contender in order:
        if contender is fio.ours and kind != "write":
            fio.make_good()
        values.setdefault((contender.name, kind), []).append(rate(contender.ask(f"{kind} {TURN_S}")))


def step_turns(values, ours, peer, fio):
    def add(name, kind, value):
        values.setdefault((name, kind), []).append(value)

    def fio_turn():
        add("fio", "ring", rate(fio.ask(f"mixed {TURN_S}")))

    def one_step():
        answer = ours.ask("alone")
        add(ours.name, "ring", answer["ring_bytes"] / answer["ring_s"])
        add(ours.name, "update", answer["update_s"])

    fio_turn()
    one_step()
    add(ours.name, "step", statistics.mean(ours.ask(f"steps {STEPS}")["step_s"]))
    for _ in range(STEPS if peer else 0):
        answer = peer.ask("step")
        add(peer.name, "update", answer["step_s"])
        add(peer.name, "step", answer["whole_s"])
    one_step()
    fio_turn()


class Contenders:
    """Starts them, anew for every round."""

    def __init__(self, arguments):
        self.arguments, self.environment = arguments, {**os.environ, **({} if arguments.small_pages else HUGE_PAGES)}
        self.about, self.peer_about = None, None  # as those of the first round introduced themselves
        self.has_peer = peers_python().exists()
        if not self.has_peer:
            print(f"no peer: {peers_python()} is missing; bench/peers/install.sh installs PyTorch and DeepSpeed there (5.5 GiB)")

    @contextlib.contextmanager
    def started(self):
        with contextlib.ExitStack() as stack:
            folder = tempfile.mkdtemp(prefix="nvme-", dir=self.arguments.folder or pathlib.Path(self.arguments.program).parent)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            ours = TurnProcess("spillway", [self.arguments.program, folder, str(FILE_BYTES), *map(str, self.arguments.aio or ())])
            stack.callback(ours.close)
            peer = self.start_peer(folder, ours.introduction) if self.has_peer else None
            if peer:
                stack.callback(peer.close)
            if self.about is None:
                self.about, self.peer_about = ours.introduction, peer.introduction if peer else "not installed"
                self.introduce()
            yield ours, peer, Fio(ours, self.environment)

    def start_peer(self, folder, about):
        """Only the first looks for its best settings."""
        found = [json.dumps(self.peer_about["aio"])] if self.peer_about else []
        command = [peers_python(), HERE / "peers/nvme_peer.py", folder, str(FILE_BYTES), str(about["tile_bytes"]), str(about["parameters"]), *found]
        try:
            return TurnProcess("deepspeed", command, self.environment)
        except SystemExit as error:  # it may not compile or run here
            if self.peer_about:
                raise
            self.has_peer = False
            print(f"no peer: {error}")
            return None

    def introduce(self):
        about, peer = self.about, self.peer_about
        if self.has_peer:
            print(f"DeepSpeed {peer['version']}, its best: {peer['aio']}, sub_group_size {peer['sub_group_size']}")
        print(f"tiles of {about['tile_bytes'] >> 20} MiB, blocks of {about['block_bytes'] >> 10} KiB, {about['depth']} in flight ({about['ring_depth']} in the step's ring), {about['engine']}; steps of "
              f"{about['parameters'] / 1e6:.1f} million parameters\nrounds: GB/s, or seconds", flush=True)


def measure(rounds, contenders):
    results = Rounds()
    for number in range(rounds):
        values = {}
        with contenders.started() as (ours, peer, fio):
            load = os.getloadavg()[0]
            for kind in FIO_KINDS:
                raw_turns(values, [fio, ours, *([peer] if peer else []), ours, fio], kind, fio)
            step_turns(values, ours, peer, fio)
        results.add(values)
        print(f"round {number + 1}, load {load:.1f}: " + ", ".join(
            f"{name} {kind} " + " ".join(f"{value * 1e-9:.2f}" if value > 1e3 else f"{value:.2f} s" for value in found)
            for (name, kind), found in values.items()), flush=True)
    return results


def figures(results):
    found = {f"{kind}_over_fio": results.ratio(("spillway", kind), ("fio", kind)) for kind in (*FIO_KINDS, "ring")}
    for kind in FIO_KINDS:
        found["raw_over_deepspeed" if kind == "mixed" else f"raw_{kind}_over_deepspeed"] = results.ratio(("spillway", kind), ("deepspeed", kind))
    for kind in ("step", "update"):
        found[f"{kind}_over_deepspeed"] = results.ratio(("deepspeed", kind), ("spillway", kind))
    return {name: None if value is None else round(value, 3) for name, value in found.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--json", action="store_true", help="the only format there is")
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 15")
    parser.add_argument("--aio", nargs=2, type=int, metavar=("BLOCK_BYTES", "DEPTH"), help="default: the trainer's")
    parser.add_argument("--small-pages", action="store_true", help="fio and DeepSpeed on pages of 4 KiB, which is their default")
    parser.add_argument("--folder", help="on the disk to measure; default: beside the program")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else 15
    contenders = Contenders(arguments)
    results = measure(rounds, contenders)
    print("medians (lowest and highest round):")
    for key in sorted(results.values, key=lambda key: (key[1], key[0])):
        results.show(key, *(("s", 1.0) if key[1] in ("step", "update") else ("GB/s", 1e-9)))
    print(json.dumps({**figures(results), "rounds": rounds, "others_pages": "small" if arguments.small_pages else "huge",
                      "file_bytes": FILE_BYTES, "spillway": contenders.about, "peer": contenders.peer_about,
                      "values": {" ".join(key): [float(f"{value:.4g}") for value in found] for key, found in results.values.items()}}))


if __name__ == "__main__":
    main()
