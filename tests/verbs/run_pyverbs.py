"""Runs rdma-core's own Python tests and prints one line for each: its name, how it ended, and why.

    run_pyverbs.py FOLDER DEVICE GID [TEST...]

Tests that PYVERBS_LEAVE_OUT names, with commas between, are not run.

FOLDER holds the folder `tests` of rdma-core's source, DEVICE and GID are what `run_tests.py` takes as --dev and --gid. Without TEST
all tests run but those of other vendors' devices."""

import os
import sys
import unittest

OTHER_VENDORS = ("mlx5", "efa", "hns", "mana", "cuda")


class Lines(unittest.TestResult):
    """Prints as it goes, so that a test that hangs is known by the name of the last line."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def line(self, test, outcome, why=""):
        why = " ".join(str(why).split())[:160]
        print(test.id(), outcome, why, file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        print("#", test.id(), file=self.out, flush=True)

    def addSuccess(self, test):
        self.line(test, "pass")

    def addSkip(self, test, reason):
        self.line(test, "skip", reason)

    def addFailure(self, test, err):
        self.line(test, "fail", err[1])

    def addError(self, test, err):
        self.line(test, "fail", f"{err[0].__name__}: {err[1]}")


def know_interfaces_by_parent(base):
    """rdma_rxe's devices have no device/net in sysfs, but a file that names their interface. Without it, tests that need an
    address are skipped."""
    by_device = base.RDMATestCase._get_ip_mac

    def by_parent(self, device, port, index):
        parent = f"/sys/class/infiniband/{device}/parent"
        if not os.path.exists(parent):
            return by_device(self, device, port, index)
        with open(parent) as file:
            address, mac = self.get_ip_mac_address(file.read().strip())
        self.args.append([device, port, index, address, mac])

    base.RDMATestCase._get_ip_mac = by_parent


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def main():
    folder, device, gid, *wanted = sys.argv[1:]
    # What it prints is for the lines alone; what tests print goes elsewhere.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:0] = [folder, os.path.join(folder, "tests")]
    from args_parser import parser  # rdma-core's own, which its tests read

    sys.argv = [sys.argv[0], "--dev", device, "--gid", gid]
    parser.parse_args()
    import tests
    from tests import base

    know_interfaces_by_parent(base)
    loader = unittest.TestLoader()
    names = wanted or [m for m in tests.__test_modules__]
    suite = unittest.TestSuite(
        loader.loadTestsFromName(n) if isinstance(n, str) else loader.loadTestsFromModule(n) for n in names
    )
    left_out = os.environ.get("PYVERBS_LEAVE_OUT", "").split(",")
    chosen = [t for t in flat(suite) if not any(v in t.id().split(".")[1] for v in OTHER_VENDORS)]
    chosen = [t for t in chosen if t.id() not in left_out]
    result = Lines(out)
    unittest.TestSuite(chosen).run(result)


main()
