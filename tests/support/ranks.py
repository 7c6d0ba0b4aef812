"""Runs of several ranks under mpirun, and which processes belong to a test."""

import os
import secrets
import signal

from support import cli

MARK = "SPILLWAY_TEST_RUN"


def mpirun(world, *options):
    """The launcher's part of a command line, however few cores there are."""
    return ["mpirun", "--oversubscribe", "--bind-to", "none", *options, "-n", str(world)]


class RanksTest(cli.CliTest):
    def setUp(self):
        super().setUp()
        self.mark = secrets.token_hex(8)

    def marked(self, **more):
        """The environment that this test's processes are known by; mpirun hands it on."""
        return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", MARK: self.mark, **more}

    def processes(self, parent=None):
        """Running ones that were started with marked(); of this parent only, if one is given."""
        word = f"{MARK}={self.mark}".encode()
        found = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                with open(f"/proc/{entry.name}/environ", "rb") as environment:
                    if word not in environment.read().split(b"\0"):
                        continue
                with open(f"/proc/{entry.name}/stat", encoding="utf-8") as stat:
                    # The name before may hold anything.
                    ancestor = int(stat.read().rpartition(")")[2].split()[1])
                if parent in (None, ancestor):
                    found.append(int(entry.name))
            except OSError:
                continue  # ended meanwhile, or another user's
        return found

    def end_all(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def run_ranks(self, world, command, *options, env=None):
        """Runs it to its end as so many ranks."""
        return self.run_command([*mpirun(world, *options), *command], self.marked(**(env or {})))
