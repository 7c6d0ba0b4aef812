"""One step of the check: a process of its own, under its own time limit, whose output is kept in a file."""

import dataclasses
import json
import os
import signal
import subprocess
import time

SKIPPED = 77  # exit status of a step that cannot run here; its last line says why
TAIL_LINES, TAIL_CHARACTERS = 20, 4000
GRACE_S = 3.0  # between asking a step to end and ending it


@dataclasses.dataclass
class Step:
    name: str
    what: str
    command: list
    limit_s: float
    environment: dict = dataclasses.field(default_factory=dict)


def run(step, limit_s, environment, log):
    """Runs it to its end or its limit; what came of it. An interrupt ends the step and is raised again."""
    start = time.monotonic()
    with open(log, "wb") as output:
        try:
            process = subprocess.Popen([str(word) for word in step.command], env={**environment, **step.environment}, stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            return outcome(step, "failed", 0.0, limit_s, f"cannot be started: {error}", log)
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_group(process)
    return judge(step, status, time.monotonic() - start, limit_s, log)


def end_group(process):
    """Ends the step and what it has started, also what outlived it."""
    for number, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def judge(step, status, seconds, limit_s, log):
    if status is None:
        return outcome(step, "failed", seconds, limit_s, f"had not ended after {limit_s:.0f} s", log)
    if status < 0:
        return outcome(step, "failed", seconds, limit_s, f"ended by {signal.Signals(-status).name}", log)
    if status == SKIPPED:
        return outcome(step, "skipped", seconds, limit_s, last_line(log), log)
    if status != 0:
        return outcome(step, "failed", seconds, limit_s, f"exit status {status}", log)
    return outcome(step, "passed", seconds, limit_s, "", log)


def outcome(step, status, seconds, limit_s, reason, log=None):
    lines = lines_of(log) if log else []
    said = [line for line in lines if not line.startswith("{")]
    return {"step": step.name, "what": step.what, "status": status, "seconds": round(seconds, 3), "limit_s": round(limit_s, 3), "reason": reason,
            "command": [str(word) for word in step.command], "figures": figures(lines), "tail": "\n".join(said[-TAIL_LINES:])[-TAIL_CHARACTERS:]}


def lines_of(log):
    with open(log, encoding="utf-8", errors="replace") as output:
        return output.read().splitlines()


def last_line(log):
    return next((line for line in reversed(lines_of(log)) if line.strip()), "")


def figures(lines):
    """The last line that is a JSON object. A step prints it anew whenever it knows more, so a step that is cut short has told
    what it knew."""
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None
