"""The program before a change against after it, on recorded runs and on random ones made from them.

    python tests/before_after.py make RUNS --count 24 --seed 1
    PYTHONPATH=BEFORE python tests/before_after.py dump RUNS before.json
    PYTHONPATH=AFTER python tests/before_after.py dump RUNS after.json
    python tests/before_after.py diff before.json after.json

`make` writes folders of two runs of the same work, `a` and `b`, and `damaged`, which is `a`
with a line cut. They differ in temperatures, loads, passes, failures, cut-short answers and
noise. `dump` calls the commands of the package that is first on the path and stores exit codes
and documents.
"""

import argparse
import contextlib
import copy
import io
import json
import math
import random
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parents[1] / "results" / "recorded"
TOLERANCE = 1e-9


def make(folder: Path, count: int, seed: int) -> None:
    """Write `count` pairs of random runs."""
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        source = rng.choice(sorted(RECORDED.iterdir()))
        header = json.loads((source / "run.json").read_text(encoding="utf-8"))
        lines = (source / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        header, records = _chosen(header, records, rng)
        place = folder / f"{number:03}-{source.name}"
        for name in ("a", "b"):
            _write(place / name, header, _noisy(records, rng))
        text = (place / "a" / "samples.jsonl").read_text(encoding="utf-8")
        _write(place / "damaged", header, [])
        (place / "damaged" / "samples.jsonl").write_text(text[: len(text) // 2], encoding="utf-8")


def _chosen(header: dict[str, Any], records: list[Any], rng: random.Random) -> tuple[Any, Any]:
    """Some methods, tasks, prompts, passes and temperatures of a run."""
    header = copy.deepcopy(header)
    others = [name for name in header["methods"] if name != "vanilla"]
    methods = ["vanilla", *rng.sample(others, rng.randint(1, min(4, len(others))))]
    if rng.random() < 0.1:
        methods = methods[1:]
    tasks = rng.sample(list(header["columns"]), rng.randint(1, len(header["columns"])))
    num_prompts, num_passes = rng.randint(1, 8), rng.choice([1, 1, 2, 3])
    ids = {task: sorted({r["sample_id"] for r in records if r["task"] == task}) for task in tasks}
    kept = [
        record
        for record in records
        if record["method"] in methods
        and record["task"] in tasks
        and record["sample_id"] in ids[record["task"]][:num_prompts]
        and record["repeat"] < num_passes
    ]
    temperatures = rng.choice([[0.0], [0.0], [0.0, 1.0]])
    if len(temperatures) > 1:
        kept += [{**record, "temperature": 1.0, "seed": record["seed"] + 1} for record in kept]
    values = header["spec"]["values"]
    values |= {"methods": methods, "tasks": tasks, "temperatures": temperatures}
    values |= {"repeats": max(r["repeat"] for r in kept) + 1, "limit": num_prompts}
    for part in ("methods", "execution", "servers"):
        if header.get(part):
            header[part] = {name: header[part][name] for name in methods}
    blocks = header.get("blocks", [])
    header["blocks"] = [b for b in blocks if b["method"] in methods and b["task"] in tasks]
    header["columns"] = {name: header["columns"][name] for name in tasks}
    header["prompts"] = [about for about in header["prompts"] if about["task"] in tasks]
    if header.get("roofline"):
        bytes_read = header["roofline"]["draft_bytes"]
        header["roofline"]["draft_bytes"] = {name: bytes_read[name] for name in methods}
    header["num_records"] = len(kept)
    return header, kept


def _noisy(records: list[Any], rng: random.Random, steady: str = "") -> list[Any]:
    """The records with other times, failures and answers that differ; one method keeps its pace."""
    spread, failing = rng.choice([0.01, 0.05, 0.2]), rng.choice([0.0, 0.0, 0.03])
    names = sorted({r["method"] for r in records})
    slow = {name: rng.choice([1.0, 1.0, 1.1, 1.5]) for name in names} | {steady: 1.0}
    passes = [math.exp(rng.gauss(0, spread / 2)) for _ in range(8)]
    made = []
    for record in records:
        record = copy.deepcopy(record)
        if record["status"] == "ok" and rng.random() < failing:
            keys = ("method", "temperature", "task", "sample_id", "turn", "repeat", "concurrency")
            record = {name: record[name] for name in keys if name in record} | {
                "schema": 1, "status": "error", "prompt_tokens": record["prompt_tokens"],
                "error": "RuntimeError: out of patience", "seed": record["seed"],
                "token_ids": [], "num_tokens": 0, "text": "", "accept_lengths": [], "num_nodes": [],
                "stop_reason": None, "prefill_s": None, "decode_s": None,
            }  # fmt: skip
        elif record["status"] == "ok":
            factor = slow[record["method"]] * passes[record["repeat"]]
            for name in ("prefill_s", "decode_s"):
                if record.get(name) is not None:
                    record[name] *= factor * math.exp(rng.gauss(0, spread))
            if record["temperature"] == 0 and record["method"] != "vanilla" and rng.random() < 0.02:
                record["token_ids"][-2:] = [5, 6][: len(record["token_ids"])]
        made.append(record)
    return made


def _write(folder: Path, header: dict[str, Any], records: list[Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({**header, "id": folder.name}, indent=1))
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "samples.jsonl").write_text(lines)


def dump(folder: Path) -> dict[str, Any]:
    """Every command's exit code and document on every run, from the package on the path."""
    found: dict[str, Any] = {}
    for run in sorted(RECORDED.iterdir()):
        found |= _of_run(run, run.name)
        found[f"{run.name}: check itself"] = _checked(str(run), "--baseline", str(run))
    for place in sorted(folder.iterdir()):
        a, b = str(place / "a"), str(place / "b")
        for name in ("a", "b", "damaged"):
            found |= _of_run(place / name, f"{place.name}/{name}")
        found[f"{place.name}: pooled"] = _document("report", "--pool", a, b)
        found[f"{place.name}: compare"] = _document("compare", a, b)
        found[f"{place.name}: check"] = _checked(b, "--baseline", a)
        found[f"{place.name}: check speed"] = _checked(b, "--baseline", a, "--speed", "always")
        with tempfile.TemporaryDirectory() as scratch:
            merged = str(Path(scratch) / "merged")
            found[f"{place.name}: merge"] = _called("merge", a, b, "--out", merged)[0]
            if found[f"{place.name}: merge"] == 0:
                found[f"{place.name}: merged"] = _document("report", merged)
    return found


def _of_run(run: Path, name: str) -> dict[str, Any]:
    return {
        f"{name}: report": _document("report", str(run)),
        f"{name}: paper": _document("report", str(run), "--arithmetic", "paper"),
        f"{name}: lenient": _document("report", str(run), "--lenient"),
        f"{name}: files": _called("verify", str(run))[0],
    }


def _document(*words: str) -> Any:
    code, text = _called(*words, "--format", "json")
    return {"exit": code, "document": json.loads(text) if code == 0 else None}


def _checked(*words: str) -> Any:
    """The exit code and the status of each check."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "junit.xml"
        code, _ = _called("check", *words, "--junit", str(file))
        cases = ElementTree.parse(file).iter("testcase") if file.exists() else ()
        names = {
            f"{case.get('classname')}/{case.get('name')}": "/".join(part.tag for part in case)
            for case in cases
        }
    return {"exit": code, "checks": names}


def _called(*words: str) -> tuple[int, str]:
    """The exit code of a command and what it printed."""
    from specbench.cli import main

    printed, errors, code = io.StringIO(), io.StringIO(), 0
    arguments, sys.argv = sys.argv, ["specbench", *words]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except Exception as error:  # an unexpected error is a result too
        return 99, repr(error)
    finally:
        sys.argv = arguments
    return code, printed.getvalue()


def differences(a: Any, b: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Places in two documents whose values differ by more than rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            yield from differences(a.get(key), b.get(key), f"{place}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif isinstance(a, float) and isinstance(b, float):
        if not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield place, a, b
    elif a != b:
        yield place, a, b


def _kind(place: str) -> str:
    """A place without the names of runs and the numbers of rows, to count like differences."""
    command = place.partition(": ")[2] or place
    return "".join(part.partition("]")[2] if "]" in part else part for part in command.split("["))


def diff(before: Path, after: Path, most: int) -> int:
    """Print how many values differ, by kind, with one example of each."""
    found = list(differences(json.loads(before.read_text()), json.loads(after.read_text())))
    kinds = Counter(_kind(place) for place, _, _ in found)
    first = {_kind(place): (place, a, b) for place, a, b in reversed(found)}
    for kind, number in kinds.most_common(most):
        place, a, b = first[kind]
        print(f"{number:6}  {kind}\n        {place}: {str(a)[:150]}  ->  {str(b)[:150]}")
    print(f"{len(found)} values differ, of {len(kinds)} kinds.")
    return int(bool(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("make", "dump", "diff"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=60)
    given = parser.parse_args()
    if given.action == "make":
        make(given.paths[0], given.count, given.seed)
        return 0
    if given.action == "diff":
        return diff(given.paths[0], given.paths[1], given.most)
    given.paths[1].write_text(json.dumps(dump(given.paths[0]), sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
