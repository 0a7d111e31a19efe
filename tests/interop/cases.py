"""Runs cases and prints a line for each, and `N passed, N failed`; the exit code says whether all passed."""

import sys


def run(cases):
    failed = 0
    for case in cases:
        try:
            case()
            print("ok     ", case.__name__, flush=True)
        except Exception as error:  # noqa: BLE001: a case may fail in any way
            failed += 1
            print("FAILED ", case.__name__, repr(error), flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    sys.exit(failed > 0)
