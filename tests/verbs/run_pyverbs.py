"""Runs rdma-core's Python tests and prints one line for each: name, outcome, reason.

    run_pyverbs.py FOLDER DEVICE GID [TEST...]

PYVERBS_LEAVE_OUT is a comma-separated list of tests that are not run.

FOLDER holds the folder `tests` of rdma-core's source. DEVICE and GID are the values of --dev and --gid of `run_tests.py`. Without TEST,
all tests run except those of other vendors' devices."""

import os
import sys
import unittest

OTHER_VENDORS = ("mlx5", "efa", "hns", "mana", "cuda")


class Lines(unittest.TestResult):
    """Prints each line at once, so that the last line names a test that hangs."""

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
    """rdma_rxe's devices have no device/net in sysfs, but a file `parent` that names their interface. Without this change, tests that
    need an address are skipped."""
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
    # Standard output carries only the result lines. Output of the tests goes to standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:0] = [folder, os.path.join(folder, "tests")]
    from args_parser import parser  # rdma-core's parser, which its tests read

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
