"""Each row of "How to add things" in CONTRIBUTING works in a copy of the checkout.

No other files are changed.
"""

import shutil
import sys
from pathlib import Path

from tests.packaging.shell import output
from tests.support.paths import ROOT

FORMAT = '''"""The title alone."""


def render(report):
    return report.title


def files(report):
    return {"title.txt": render(report)}
'''
PLOT = '''"""A point."""

from matplotlib.figure import Figure

from specbench.report.plots.style import Plot

PLOTS = ((99, lambda report: Plot("dot", "A dot", "A dot.", "One dot.", Figure)),)
'''
MODEL = """
[model."seed-oss-36b"]
title = "Seed OSS 36B"
repo = "ByteDance-Seed/Seed-OSS-36B-Instruct"
"""
EXCHANGE = '''"""Answers of a toy, one per line."""

import json

from specbench.log.exchange.format import FileContent, Format, answer_key, steps_of
from specbench.types import ImportedCounts, Record


def _read(source):
    return FileContent(records=[_record(line) for line in source.entries], counting="as it says")


def _record(line):
    tokens, steps = line.get("tokens", int), line.get("steps", int)
    counts = ImportedCounts(tokens, num_emitted=tokens, num_steps=steps, total_s=2.0)
    return Record(answer_key(line.get("toy", str)), "ok", 0, imported=counts)


def _write(answers):
    lines = [
        {"toy": record.key.sample_id, "tokens": record.num_tokens, "steps": steps_of(record)[1]}
        for record in answers.records
    ]
    return "".join(json.dumps(line) + "\\n" for line in lines)


FORMAT = Format(
    title="answers of a toy",
    tool="toy",
    arithmetic="the toy's own rule",
    matches=lambda first: first.has("toy", "tokens", "steps"),
    read=_read,
    write=_write,
)
'''
TOYS = '{"toy": "a", "tokens": 9, "steps": 3}\n{"toy": "b", "tokens": 5, "steps": 4}\n'
KIND = '''"""Copies: chains from text that are recorded, not made again."""

from specbench.tune.kinds.path import PathKind


class CopiesKind(PathKind):
    """As a path."""

    name = "copies"


KIND = CopiesKind()
'''
ADDED: dict[str, dict[str, list[tuple[str, str]]]] = {
    "an output format": {"specbench/report/export/title.py": [("", FORMAT)]},
    "a format of other tools' results": {"specbench/log/exchange/formats/toy.py": [("", EXCHANGE)]},
    "a plot": {"specbench/report/plots/dot.py": [("", PLOT)]},
    "a column of the report's overview": {
        "specbench/report/sections.py": [
            ("_OVERVIEW = (", '_OVERVIEW = (Field("pairs", text=lambda m: f"{len(m.tasks)}"),')
        ]
    },
    "a statistic of a cell": {
        "specbench/analysis/cells.py": [
            ("    num_steps: int\n", "    num_steps: int\n    most: Value\n"),
            (
                "num_steps=int(",
                "most=Estimate(max(step_counts.histogram, default=0)), num_steps=int(",
            ),
        ],
        "specbench/analysis/frames.py": [
            ('"match_rate":', '"most": value_or_none(cell.most), "match_rate":')
        ],
    },
    "a family of models on the fused stack": {
        "specbench/engine/layers/models.py": [('"Qwen3For', '"SeedOssForCausalLM", "Qwen3For')]
    },
    "a kind of profile": {
        "specbench/tune/kinds/copies.py": [("", KIND)],
        "methods/pld.py": [('profile = "text"', 'profile = "copies"')],
    },
    "a grid of settings": {
        "specbench/settings/grids.py": [("TRIED_CHAINS = (", "TRIED_CHAINS = (5, ")],
    },
    "a model": {"specbench/models/models.toml": [("# The models", f"{MODEL}# The models")]},
}
"""The old and the new text of each change that a recipe makes to its files."""
FUSED = """
from transformers import AutoConfig, AutoModelForCausalLM
from specbench.engine.layers.models import unsupported_reason
from specbench.models.cards import find_model
small = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, vocab_size=50)
model = AutoModelForCausalLM.from_config(AutoConfig.for_model("seed_oss", **small))
print(find_model("seed-oss-36b").title, unsupported_reason(model))
"""
PROFILED = """
from specbench.tune import mat, profile, replay
from specbench.tune.candidates import candidates
made = profile("tiny", "pld", tasks="gsm8k", limit=1, max_new_tokens=24, dtype="float32", threads=1)
setting = "pld:num_tokens=5"
is_tried = setting in candidates(made, "pld")
print(made.header.methods["pld"].kind, is_tried, mat(replay(made, setting)) >= 1)
"""


def test_each_thing_is_added_in_the_files_that_contributing_names(
    source_copy: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(source_copy, tmp_path / "checkout", symlinks=True)
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    for what, files in ADDED.items():
        (row,) = [line for line in contributing.splitlines() if line.startswith(f"| {what} |")]
        for name, changes in files.items():
            assert name in row.replace("NAME", Path(name).stem), f"{name} is not in {row}"
            text = (copy / name).read_text() if (copy / name).exists() else ""
            for old, new in changes:
                assert old in text
                text = text.replace(old, new, 1)
            (copy / name).write_text(text)
    run, python = ROOT / "results/recorded/amd-epyc-2-cores", [sys.executable, "-m", "specbench"]
    out = tmp_path / "out"
    said = output([*python, "report", str(run), "--format", "title", "--out", str(out)], copy)
    assert said.strip() == (out / "title.txt").read_text() != ""
    assert (out / "dot.svg").is_file()
    assert "| pairs |" in (out / "table.md").read_text()
    assert ",most," in (out / "table.csv").read_text().splitlines()[0]
    assert '"most"' in (out / "report.json").read_text()
    (tmp_path / "toys.jsonl").write_text(TOYS)
    convert, imported = [*python, "convert"], str(tmp_path / "imported")
    said = output([*convert, str(tmp_path / "toys.jsonl"), "--out", imported], copy)
    assert "the toy's own rule" in said and "toys: speedup –, MAT 2.00, 3.5 tok/s" in said
    output([*convert, imported, "--to", "toy", "--out", str(tmp_path / "toys")], copy)
    assert (tmp_path / "toys" / "toys.jsonl").read_text() == TOYS
    assert output([sys.executable, "-c", FUSED], copy).splitlines()[-1] == "Seed OSS 36B None"
    profiled = output([sys.executable, "-c", PROFILED], copy).splitlines()[-1]
    assert profiled == "copies True True"
