"""Runs the fault suite and prints its table: `python -m tests.faults [AREA ...] [--scale 0.1]`."""

import argparse
import sys

from tests.faults.suite import area_names, load_area, run_areas, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    names = area_names()
    parser.add_argument("areas", nargs="*", metavar="AREA", help=", ".join(names), default=names)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the tries")
    parser.add_argument("--tries", type=int, help="attacks of each area, instead of a share")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first attack")
    parser.add_argument("--jobs", type=int, default=2, help="attacks at once")
    given = parser.parse_args()
    if unknown := set(given.areas) - {*names}:
        parser.error(f"no area {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    seeds_by_area = {}
    for name in given.areas:
        tries = given.tries or max(1, round(load_area(name).TRIES * given.scale))
        seeds_by_area[name] = range(given.seed, given.seed + tries)
    results = run_areas(seeds_by_area, given.jobs)
    for result in results:
        for seed, reason in sorted(result.failures.items()):
            print(f"{result.area}, seed {seed}: {reason}", file=sys.stderr, flush=True)
    print(table(results))
    return 1 if any(result.failures for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
