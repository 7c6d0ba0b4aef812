"""Runs unittest cases and says how each went in the Test Anything Protocol, which Meson counts case by case."""

import sys
import unittest


class _Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.number = 0

    def _line(self, ok, test, note=""):
        self.number += 1
        name = test.id().removeprefix("__main__.").replace("#", "")
        print(f"{'ok' if ok else 'not ok'} {self.number} - {name}{note}", flush=True)

    def addSuccess(self, test):
        self._line(True, test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._line(True, test, f" # SKIP {reason}")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._report(test, self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self._report(test, self.errors[-1][1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            issue = self.failures if issubclass(error[0], test.failureException) else self.errors
            self._report(subtest, issue[-1][1])

    def _report(self, test, text):
        self._line(False, test)
        for line in text.splitlines():
            print("# " + line, flush=True)


def main():
    """All cases of the __main__ module; the words after the program's arguments pick some by name."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    result = _Result()
    suite.run(result)
    print(f"1..{result.number}", flush=True)
    sys.exit(0 if result.wasSuccessful() else 1)
