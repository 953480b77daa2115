"""`convert` makes the tables of `results/published` from the publishers' files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specbench.errors import UserError
from specbench.judge.published_cells import find_cells
from specbench.log.exchange.convert import UserFacts, convert, parse_file
from specbench.log.exchange.source import read_source
from specbench.log.exchange.tables import read_table, table_mapping, write_figures, write_table
from specbench.log.run import Run
from specbench.report.published import Publication, read_publication
from tests.analysis.run_factory import full_run
from tests.log.exchange.files import PUBLISHED, answer, needs_published, write_lines
from tests.support.paths import ROOT

TABLES = ROOT / "results" / "published"


def publication(name: str) -> Publication:
    return msgspec.toml.decode((TABLES / f"{name}.toml").read_bytes(), type=Publication)


def publication_columns(path: Path) -> dict[str, str]:
    columns: dict[str, str] = msgspec.toml.decode(path.read_bytes())["columns"]
    return columns


def run_of(files: Sequence[str], **facts: Any) -> Run:
    return convert([parse_file(file) for file in files], UserFacts(**facts))


def runs_of(name: str) -> list[Run]:
    url = publication(name).url
    if name == "eagle_70b":
        base, eagle = sorted((PUBLISHED / "eagle").iterdir())
        files = [f"base={base}", f"eagle={eagle}"]
        model = "llama2-70b-chat"
        return [run_of(files, baseline="base", model=model, task="mt_bench", url=url)]
    if name == "medusa":
        end = "-temperature-0.0-posterior_threshold-0.09-posterior_alpha-0.3.jsonl"
        names = {"vicuna-7b": ("7b-v1.3", "7b-v1.3-1", "7b-v1.3-2"), "vicuna-13b": ("13b-v1.3",)}
        return [
            run_of(
                [f"medusa={PUBLISHED}/medusa/medusa-vicuna-{part}{end}" for part in parts],
                model=model,
                task="mt_bench",
                url=url,
            )
            for model, parts in names.items()
        ]
    if name == "specdecode_bench":
        files = [f"walk={PUBLISHED}/simulator/combined_gsm8k.jsonl"]
        return [run_of(files, model="llama3.1-8b", task="gsm8k", url=url)]
    files = [f"llama.cpp={PUBLISHED}/consumer-gpus/results.json"]
    return [run_of(files, model="Qwen2.5-Coder-7B-Instruct-Q4_K_S", url=url)]


@needs_published
@pytest.mark.parametrize("name", ["eagle_70b", "medusa", "specdecode_bench", "consumer_gpus"])
def test_the_figures_of_answers_equal_those_of_convert(name: str, tmp_path: Path) -> None:
    for path in write_figures(runs_of(name), tmp_path / name):
        assert path.read_bytes() == (TABLES / path.name).read_bytes()


@needs_published
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        # Files are found by name, since the copies lack the paths of the publisher's machine.
        ("draftbench", "draftbench/qwen25-72b.json"),
        ("inferencex", "inferencex/*.yaml"),
        ("vllm_study", "vllm-sglang-study/*.json"),
    ],
)
def test_the_cells_of_totals_equal_those_of_convert(
    name: str, pattern: str, tmp_path: Path
) -> None:
    sources = [read_source(path) for path in sorted(PUBLISHED.glob(pattern))]
    mapping = table_mapping(sources[0], None)
    assert mapping
    _, csv_path = write_table(read_table(sources, mapping), tmp_path / name)
    assert csv_path.read_bytes() == (TABLES / f"{name}.csv").read_bytes()
    hashes = {source.path.name: source.sha256 for source in sources}
    assert name == "draftbench" or hashes == publication(name).files


def test_each_rule_is_a_cell_that_compare_finds(tmp_path: Path) -> None:
    base = [answer(n, idxs=[9], new_tokens=[0], wall_time=[2.0]) for n in range(3)]
    fast = [answer(n, idxs=[2], new_tokens=[12]) for n in range(3)]
    files = [
        f"base={write_lines(tmp_path / 'b.jsonl', *base)}",
        f"eagle={write_lines(tmp_path / 'e.jsonl', *fast)}",
    ]
    url = "https://github.com/someone/files/tree/main"
    run = run_of(files, baseline="base", model="m", task="chat", url=url)
    toml_path, _ = write_figures([run], tmp_path / "figures")
    assert read_publication(toml_path)[0].publication.name == "someone/files"
    cell = f"{tmp_path}/figures:m/eagle/chat,settings=the ratio of totals, with "
    for counting, speedup in {"idx": 12 / 0.5 / (9 / 2), "idx + 1": 12 / 0.5 / (10 / 2)}.items():
        (value,) = find_cells(f"{cell}{counting} as the baseline's tokens")
        assert value.speedup == pytest.approx(speedup)
        assert value.where == f"someone/files, {value.settings}"
    with pytest.raises(UserError, match="has no numbers of a publisher"):
        write_figures([run, full_run()], tmp_path / "measured")


def test_files_with_the_same_name_have_separate_hashes(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    old, new, other = (
        write_lines(tmp_path_factory.mktemp("results") / name, answer(0, wall_time=[seconds]))
        for name, seconds in (("a.jsonl", 2.0), ("a.jsonl", 1.0), ("a.jsonl (2)", 3.0))
    )
    run = run_of(
        [f"old={old}", f"new={new}", f"other={other}"], baseline="old", model="m", task="chat"
    )
    toml_path, _ = write_figures([run, run], tmp_path / "figures")
    hashes = {
        "a.jsonl": read_source(old).sha256,
        "a.jsonl (2)": read_source(other).sha256,
        "a.jsonl (3)": read_source(new).sha256,
    }
    assert read_publication(toml_path)[0].publication.files == hashes


def test_the_toml_file_has_the_columns_of_the_csv_file(tmp_path: Path) -> None:
    alone = write_lines(tmp_path / "a.jsonl", answer(0))  # has no speedup without a baseline
    run = run_of([f"m={alone}"], model="m", task="chat")
    toml_path, csv_path = write_figures([run], tmp_path / "figures")
    columns = publication_columns(toml_path)
    assert columns
    assert {*columns} <= {*csv_path.read_text().splitlines()[0].split(",")}
