"""The program before and after a change, on recorded runs and on random runs made from them.

    python tests/before_after.py make RUNS --count 24 --seed 1
    PYTHONPATH=BEFORE python tests/before_after.py dump RUNS before.txt
    PYTHONPATH=AFTER python tests/before_after.py dump RUNS after.txt
    diff before.txt after.txt

`make` writes folders of two runs of the same work, `a` and `b`, and `damaged`, which is `a`
with a line cut. They differ in temperatures, loads, passes, failures, cut-short answers and
noise. `dump` calls the commands of the package that is first on the path and writes a line for each
exit code and each value of their documents, to nine digits.
"""

import argparse
import contextlib
import copy
import gzip
import io
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parents[1] / "results" / "recorded"


def make(folder: Path, count: int, seed: int) -> None:
    """Write `count` pairs of random runs."""
    for index in range(count):
        rng = random.Random(f"{seed}/{index}")
        source = rng.choice(sorted(RECORDED.iterdir()))
        header = json.loads((source / "run.json").read_text(encoding="utf-8"))
        records = [json.loads(line) for line in _lines(source)]
        header, records = _chosen(header, records, rng)
        pair = folder / f"{index:03}-{source.name}"
        for name in ("a", "b"):
            _write(pair / name, header, _noisy(records, rng))
        text = (pair / "a" / "samples.jsonl").read_text(encoding="utf-8")
        _write(pair / "damaged", header, [])
        (pair / "damaged" / "samples.jsonl").write_text(text[: len(text) // 2], encoding="utf-8")


def _lines(run: Path) -> list[str]:
    """The lines of a run's records, which may be compressed."""
    plain = run / "samples.jsonl"
    compressed = run / "samples.jsonl.gz"
    content = plain.read_bytes() if plain.exists() else gzip.decompress(compressed.read_bytes())
    return content.decode("utf-8").removesuffix("\n").split("\n")


def _chosen(header: dict[str, Any], records: list[Any], rng: random.Random) -> tuple[Any, Any]:
    """Some methods, tasks, prompts, passes and temperatures of a run."""
    header = copy.deepcopy(header)
    others = [name for name in header["methods"] if name != "vanilla"]
    num_others = rng.randint(1, min(4, len(others)))
    methods = ["vanilla", *rng.sample(others, num_others)]
    if rng.random() < 0.1:
        methods = methods[1:]
    columns = header["columns"]  # by task
    num_tasks = rng.randint(1, len(columns))
    tasks = rng.sample(list(columns), num_tasks)
    num_prompts = rng.randint(1, 8)
    num_passes = rng.choice([1, 1, 2, 3])
    # the ids of each task's prompts
    ids = {
        task: sorted({record["sample_id"] for record in records if record["task"] == task})
        for task in tasks
    }
    kept = [
        record
        for record in records
        if record["method"] in methods
        and record["temperature"] == 0.0
        and record["task"] in tasks
        and record["sample_id"] in ids[record["task"]][:num_prompts]
        and record["repeat"] < num_passes
    ]
    temperatures = rng.choice([[0.0], [0.0], [0.0, 1.0]])
    if len(temperatures) > 1:
        kept += [{**record, "temperature": 1.0, "seed": record["seed"] + 1} for record in kept]
    values = header["spec"]["values"]
    values |= {"methods": methods, "tasks": tasks, "temperatures": temperatures}
    last_pass = max(record["repeat"] for record in kept)
    values |= {"repeats": last_pass + 1, "limit": num_prompts}
    for part in ("methods", "execution", "servers"):
        if header.get(part):
            header[part] = {name: header[part][name] for name in methods}
    header["blocks"] = [
        block
        for block in header.get("blocks", [])
        if block["method"] in methods and block["task"] in tasks
    ]
    header["columns"] = {task: columns[task] for task in tasks}
    header["prompts"] = [about for about in header["prompts"] if about["task"] in tasks]
    if header.get("roofline"):
        bytes_read = header["roofline"]["draft_bytes"]
        header["roofline"]["draft_bytes"] = {name: bytes_read[name] for name in methods}
    header["num_records"] = len(kept)
    return header, kept


def _noisy(records: list[Any], rng: random.Random, steady: str = "") -> list[Any]:
    """The records with random times, failures and answers. The method `steady` keeps its pace."""
    spread = rng.choice([0.01, 0.05, 0.2])  # standard deviation of log times
    failure_rate = rng.choice([0.0, 0.0, 0.03])
    methods = sorted({record["method"] for record in records})
    slowness = {method: rng.choice([1.0, 1.0, 1.1, 1.5]) for method in methods} | {steady: 1.0}
    factor_of_pass = [math.exp(rng.gauss(0, spread / 2)) for _ in range(8)]
    noisy = []
    for record in records:
        record = copy.deepcopy(record)
        if record["status"] == "ok" and rng.random() < failure_rate:
            keys = ("method", "temperature", "task", "sample_id", "turn", "repeat", "concurrency")
            record = {name: record[name] for name in keys if name in record} | {
                "schema": 1, "status": "error", "prompt_tokens": record["prompt_tokens"],
                "error": "RuntimeError: out of patience", "seed": record["seed"],
                "token_ids": [], "num_tokens": 0, "text": "", "accept_lengths": [], "num_nodes": [],
                "stop_reason": None, "prefill_s": None, "decode_s": None,
            }  # fmt: skip
        elif record["status"] == "ok":
            factor = slowness[record["method"]] * factor_of_pass[record["repeat"]]
            for name in ("prefill_s", "decode_s"):
                if record.get(name) is not None:
                    record[name] *= factor * math.exp(rng.gauss(0, spread))
            is_greedy_draft = record["temperature"] == 0 and record["method"] != "vanilla"
            if is_greedy_draft and rng.random() < 0.02:
                token_ids = record["token_ids"]
                token_ids[-2:] = [5, 6][: len(token_ids)]
        noisy.append(record)
    return noisy


def _write(folder: Path, header: dict[str, Any], records: list[Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({**header, "id": folder.name}, indent=1))
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "samples.jsonl").write_text(lines)


def dump(folder: Path) -> dict[str, Any]:
    """Every command's exit code and document on every run, from the package on the path."""
    documents: dict[str, Any] = {}
    for run in sorted(RECORDED.iterdir()):
        documents |= _of_run(run, run.name)
        documents[f"{run.name}: check itself"] = _document(
            "check", str(run), "--baseline", str(run)
        )
    for pair in sorted(folder.iterdir()):
        a, b = str(pair / "a"), str(pair / "b")
        for name in ("a", "b", "damaged"):
            documents |= _of_run(pair / name, f"{pair.name}/{name}")
        documents[f"{pair.name}: pooled"] = _document("report", "--pool", a, b)
        documents[f"{pair.name}: compare"] = _document("compare", a, b)
        documents[f"{pair.name}: check"] = _document("check", b, "--baseline", a)
        documents[f"{pair.name}: check speed"] = _document(
            "check", b, "--baseline", a, "--speed", "always"
        )
        with tempfile.TemporaryDirectory() as scratch:
            merged = str(Path(scratch) / "merged")
            documents[f"{pair.name}: merge"] = _called("merge", a, b, "--out", merged)[0]
            if documents[f"{pair.name}: merge"] == 0:
                documents[f"{pair.name}: merged"] = _document("report", merged)
    return documents


def _of_run(run: Path, name: str) -> dict[str, Any]:
    return {
        f"{name}: report": _document("report", str(run)),
        f"{name}: paper": _document("report", str(run), "--arithmetic", "paper"),
        f"{name}: lenient": _document("report", str(run), "--lenient"),
        f"{name}: files": _called("verify", str(run))[0],
    }


def _document(*words: str) -> Any:
    """The exit code of a command, and the document that it prints."""
    json_option = ("--json",) if words[0] == "check" else ("--format", "json")
    code, text = _called(*words, *json_option)
    document = json.loads(text) if text.startswith("{") else None
    return {"exit": code, "document": document}


def _called(*words: str) -> tuple[int, str]:
    """The exit code of a command and its output."""
    from specbench.cli import main

    printed = io.StringIO()
    errors = io.StringIO()
    code = 0
    arguments = sys.argv
    sys.argv = ["specbench", *words]
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


def lines_of(content: Any, place: str = "") -> Iterator[str]:
    """Each single value of a document with its place."""
    if isinstance(content, dict | list):
        pairs = sorted(content.items()) if isinstance(content, dict) else enumerate(content)
        for key, inner in pairs:
            yield from lines_of(inner, f"{place}/{key}")
    else:
        yield f"{place}: {content:.9g}" if isinstance(content, float) else f"{place}: {content!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("make", "dump"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.action == "make":
        make(given.paths[0], given.count, given.seed)
    else:
        given.paths[1].write_text("\n".join(lines_of(dump(given.paths[0]))))


if __name__ == "__main__":
    main()
