"""The results of a check: one JSON file, whole at every moment, replaced after every step."""

import json
import os
import platform
import time


class Results:
    def __init__(self, path, arguments, dry_run):
        self.path = path
        self.start = time.monotonic()
        self.content = {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "arguments": arguments, "simulated": dry_run,
                        "machine": machine(), "ended": False, "seconds": 0.0, "passed": 0, "failed": 0, "skipped": 0, "steps": []}
        self.write()

    def add(self, outcome):
        self.content["steps"].append(outcome)
        self.content[outcome["status"]] += 1
        self.write()

    def end(self):
        self.content["ended"] = True
        self.write()

    def write(self):
        self.content["seconds"] = round(time.monotonic() - self.start, 3)
        partial = self.path.with_suffix(".partial")
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(self.content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.path)

    @property
    def seconds(self):
        return time.monotonic() - self.start

    @property
    def failed(self):
        return self.content["failed"]

    def counts(self):
        return "{passed} passed, {failed} failed, {skipped} skipped".format(**self.content)


def machine():
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    return {"kernel": platform.release(), "cores": len(os.sched_getaffinity(0)), "memory_bytes": memory, "python": platform.python_version()}


def figures_of(path, step):
    """What an earlier step of the same check has found, or {} if it has not run or found nothing."""
    with open(path, encoding="utf-8") as file:
        for outcome in json.load(file)["steps"]:
            if outcome["step"] == step and outcome["figures"]:
                return outcome["figures"]
    return {}
