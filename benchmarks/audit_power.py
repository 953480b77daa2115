"""Count the bugs that the contract's checks and the audit find on `tiny`, and their false alarms.

    python -m benchmarks.audit_power [--seeds N] [--jobs N] [--minutes M] [--out FILE]

It plants each bug of tests/support/bugs.py in a method that drafts with `tiny`'s draft model plus
noise. The contract's checks have to find every bug. The audit has to find every bug that shows in
outputs, within 200 answers. The sound variants and N runs of all real methods together may cause at
most two false alarms. Methods without weights for `tiny` run on a small random model. All draws are
seeded.

The result of each part is appended to FILE as a line, and later calls skip the parts in FILE. So
name another file after the code has changed. No part begins after M minutes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from time import monotonic, process_time
from typing import Any

from benchmarks.planting import (
    Figures,
    Ground,
    audit_bug,
    audit_real,
    audit_sound,
    random_ground,
    tiny_ground,
)
from tests.support.bugs import BUGS, SOUND

OUT = Path("build/audit_power.jsonl")
NUM_SEEDS, SEEDS_PER_PART = 50, 5
MAX_ANSWERS, MAX_ALARMS = 200, 2
"""A bug must be found within `MAX_ANSWERS` answers. `MAX_ALARMS` false alarms are allowed."""
WITHOUT_WEIGHTS = ("dflash", "layerskip", "mtp", "pard", "peagle", "rest")
"""Methods that `tiny` has no weights for."""


def main() -> None:
    """Run the parts that are missing, then print one line per bug and variant, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="runs of the real methods")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no part after this")
    parser.add_argument("--out", type=Path, default=OUT, help="file of results")
    arguments = parser.parse_args()
    done, parts = read_parts(arguments.out), parts_of(arguments.seeds)
    missing = [part for part in parts if part not in done]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a", encoding="utf-8") as out:
        deadline = monotonic() + 60 * arguments.minutes
        for ended in _run(missing, arguments.jobs, deadline=deadline):
            print(json.dumps(asdict(ended)), file=out, flush=True)
            print(f"{ended.part}: {ended.seconds:.0f} s {ended.figures}", flush=True)
            done[ended.part] = ended
    if left := sum(part not in done for part in parts):
        sys.exit(f"{left} of {len(parts)} parts are left: call again.")
    summary = Summary({part: done[part] for part in parts})
    print(*summary.lines(), sep="\n")
    sys.exit(not summary.is_passed)


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a part, and the CPU time that it took."""

    part: str
    seconds: float
    figures: Mapping[str, Any]


def read_parts(path: Path) -> dict[str, Ended]:
    """The parts that earlier calls have finished."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {ended.part: ended for ended in (Ended(**json.loads(line)) for line in lines)}


def _run(parts: Sequence[str], num_jobs: int, *, deadline: float) -> Iterator[Ended]:
    """The results of parts, as they end. None begins after `deadline`, a time of `monotonic`."""
    if not parts or monotonic() > deadline:
        return
    run = partial(run_part, deadline)
    if num_jobs == 1:
        yield from filter(None, map(run, parts))
        return
    with multiprocessing.get_context("spawn").Pool(num_jobs) as pool:
        yield from filter(None, pool.imap_unordered(run, parts))


def parts_of(num_seeds: int) -> list[str]:
    """The names of all parts: a kind, then the name of a variant or the part's first seed."""
    seeds = range(0, num_seeds, SEEDS_PER_PART)
    return [
        *(f"bug: {bug.name}" for bug in BUGS),
        *(f"sound: {variant.name}" for variant in SOUND),
        *(f"{kind}: {seed}" for kind in ("tiny", "random") for seed in seeds),
    ]


def run_part(deadline: float, part: str) -> Ended | None:
    """The result of a part, or None if the deadline has passed."""
    if monotonic() > deadline:
        return None
    kind, _, name = part.partition(": ")
    ground = _ground("random" if kind == "random" else "tiny")
    before = process_time()
    if kind == "bug":
        figures = audit_bug(next(bug for bug in BUGS if bug.name == name), ground)
    elif kind == "sound":
        figures = audit_sound(next(sound for sound in SOUND if sound.name == name), ground)
    else:
        figures = audit_real(ground, range(int(name), int(name) + SEEDS_PER_PART))
    return Ended(part, process_time() - before, figures)


@cache
def _ground(name: str) -> Ground:
    """The models and prompts of this name ("tiny" or "random"), loaded once per process."""
    return tiny_ground() if name == "tiny" else random_ground(WITHOUT_WEIGHTS)


class Summary:
    """The result of all parts that have ended."""

    def __init__(self, ended: Mapping[str, Ended]) -> None:
        self._ended = ended
        bugs, sound = self._figures("bug"), self._figures("sound")
        real = [*self._figures("tiny").values(), *self._figures("random").values()]
        self.num_bugs, self.num_sound = len(bugs), len(sound)
        self.escaped = [name for name, bug in bugs.items() if not bug["contract"]]
        self.in_outputs = {name: bug for name, bug in bugs.items() if bug["audit"] is not None}
        self.missed = [
            name
            for name, bug in self.in_outputs.items()
            if not bug["audit"] or bug["answers"] > MAX_ANSWERS
        ]
        self.most_answers = max(bug["answers"] for bug in self.in_outputs.values())
        self.num_audits = sum(figures["audits"] for figures in real)
        self.alarms = [
            f"{name}: {text}"
            for name, figures in sound.items()
            for text in (*figures["contract"], *figures["audit"])
        ]
        self.alarms += [text for figures in real for text in figures["alarms"]]

    def _figures(self, kind: str) -> dict[str, Figures]:
        parts = {part.partition(": "): ended for part, ended in self._ended.items()}
        return {
            name: ended.figures
            for (part_kind, _, name), ended in parts.items()
            if part_kind == kind
        }

    @property
    def is_passed(self) -> bool:
        return not self.escaped and not self.missed and len(self.alarms) <= MAX_ALARMS

    def lines(self) -> Iterator[str]:
        """Lines with the counts of bugs, alarms and seconds."""
        yield f"bugs: {self.num_bugs}; the contract misses {_listed(self.escaped)}"
        yield (
            f"of the {len(self.in_outputs)} bugs that show in outputs, the audit misses "
            f"{_listed(self.missed)}, with at most {self.most_answers} answers per method"
        )
        yield (
            f"{self.num_sound} sound variants and {self.num_audits} audits of real methods: "
            f"{len(self.alarms)} false alarms ({_listed(self.alarms)})"
        )
        yield f"{sum(ended.seconds for ended in self._ended.values()):.0f} s of CPU time"


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names)) or "none"


if __name__ == "__main__":
    main()
