"""The driver of ./gpu-check.sh: runs the steps one after another, whatever becomes of each, and keeps the results as it goes."""

import argparse
import os
import pathlib
import signal
import sys
import tempfile

import step as process
import steps
from results import Results
from target import Target

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEAST_S = 5.0  # a step is not begun with less time left


def parse():
    parser = argparse.ArgumentParser(prog="gpu-check.sh", description="Checks and measures a machine with a CUDA card.")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the folder with what was built; default: build")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/gpu-check", help="folder of results.json and logs; default: out/gpu-check")
    parser.add_argument("--only", nargs="+", metavar="STEP", default=[], help="only these; a name ending in * means all that begin so")
    parser.add_argument("--minutes", type=float, default=9.8, help="for all steps together; default: 9.8")
    parser.add_argument("--dry-run", action="store_true", help="against the simulation, with tiny sizes: tries the check itself")
    parser.add_argument("--list", action="store_true", help="say what the steps are, and run none")
    # For scripts/gpu_bundle.sh: the programs that the steps run, relative to the build folder.
    parser.add_argument("--programs", action="store_true", help=argparse.SUPPRESS)
    # Steps that go wrong, for the test of this driver.
    parser.add_argument("--plant", nargs="+", choices=steps.PLANTED, default=[], help=argparse.SUPPRESS)
    return parser.parse_args()


def selected(all_steps, only):
    def wanted(name, pattern):
        return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern

    for pattern in only:
        if not any(wanted(step.name, pattern) for step in all_steps):
            sys.exit(f"gpu-check.sh: no step '{pattern}'; there are: {', '.join(step.name for step in all_steps)}")
    return [step for step in all_steps if not only or any(wanted(step.name, pattern) for pattern in only)]


def say(outcome):
    reason = f"  ({outcome['reason']})" if outcome["reason"] else ""
    print(f"{outcome['status']:7} {outcome['seconds']:6.1f} s  {outcome['step']}: {outcome['what']}{reason}", flush=True)


def run_all(chosen, target, results, seconds):
    """Every step, each within its limit and all within `seconds`."""
    for step in chosen:
        left = seconds - results.seconds
        if left < min(LEAST_S, step.limit_s):
            outcome = process.outcome(step, "skipped", 0.0, 0.0, f"no time left of the {seconds / 60:.1f} minutes; run it with --only {step.name}")
        else:
            outcome = run_one(step, min(step.limit_s, left), target, results)
        results.add(outcome)
        say(outcome)


def run_one(step, limit_s, target, results):
    log = target.out / "logs" / f"{step.name}.log"
    with tempfile.TemporaryDirectory(prefix="work-", dir=target.out) as work:
        environment = {**target.environment(), "SPILLWAY_CHECK_WORK": work}
        try:
            return process.run(step, limit_s, environment, log)
        except KeyboardInterrupt:
            outcome = process.outcome(step, "failed", 0.0, limit_s, "interrupted", log)
            results.add(outcome)
            say(outcome)
            raise


def interrupt(number, frame):
    raise KeyboardInterrupt


def main():
    arguments = parse()
    target = Target(ROOT, arguments.build.resolve(), arguments.out.resolve(), arguments.dry_run)
    if arguments.programs:
        print("\n".join(map(str, steps.programs(target))))
        return 0
    chosen = selected(steps.planned(target, arguments.plant), arguments.only)
    if arguments.list:
        print("\n".join(f"{step.name:24} {step.limit_s:4.0f} s  {step.what}" for step in chosen))
        return 0
    if reason := target.why_unusable():
        sys.exit(f"gpu-check.sh: {reason}")
    (target.out / "logs").mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, interrupt)
    results = Results(target.results, sys.argv[1:], arguments.dry_run)
    status = 0
    try:
        run_all(chosen, target, results, arguments.minutes * 60)
        results.end()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    print(f"results: {os.path.relpath(target.results)}")
    print(results.counts())
    return status or int(results.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
