"""What benchmarks measure in turns: a process that prints one JSON object to introduce itself, then answers each line by one."""

import json
import os
import pathlib
import subprocess
import sys


class TurnProcess:
    def __init__(self, name, command, environment=None, before=None):
        """`before` is called in the new process before the program is."""
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=before)
        self.introduction = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, line):
        print(line, file=self.process.stdin, flush=True)
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def peers_python():
    """The interpreter that bench/peers/install.sh installs; it may not be there."""
    folder = os.environ.get("SPILLWAY_ADAM_PEERS") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "spillway/adam-peers")
    return pathlib.Path(folder, "bin/python")
