"""Runs the fault suite and prints its table: `python -m tests.faults [AREA ...] [--scale 0.1]`."""

from __future__ import annotations

import argparse
import sys

from tests.faults.suite import area_names, load_area, run_area, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=", ".join(area_names()))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the tries")
    parser.add_argument("--tries", type=int, help="attacks of each area, instead of a share")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first attack")
    given = parser.parse_args()
    if unknown := set(given.areas) - set(area_names()):
        parser.error(f"no area {', '.join(sorted(unknown))}; there are {', '.join(area_names())}")
    results = []
    for name in given.areas or area_names():
        area = load_area(name)
        result = run_area(area, given.tries or area.scaled(given.scale), given.seed)
        for seed, reason in result.failures.items():
            print(f"{name}, seed {seed}: {reason}", file=sys.stderr, flush=True)
        results.append(result)
    print(table(results))
    return 1 if any(one.failures for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
