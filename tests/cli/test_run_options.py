"""Options that choose prompts, sort the table or write events."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.log.store import read_run
from specbench.measure.spec import make_spec
from specbench.types import Completion, Request, Sampling
from tests.cli.conftest import Specbench
from tests.support.backend import Answer, answering
from tests.support.checkpoint import write_prompts

pytestmark = pytest.mark.usefixtures("answers")


def ids(path: str) -> list[str]:
    records = read_run(Path(path)).records
    return [record.key.sample_id for record in records if record.key.method == "vanilla"]


def test_a_sample_is_drawn_with_the_seed_from_every_task(specbench: Specbench) -> None:
    tasks = ("--dataset", "gsm8k,alpaca", "--sample", 3)
    call = ("run", "--method", "pld", *tasks, "--repeats", 1, "--quiet")
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        assert specbench(*call, "--seed", seed, "--output", name).code == 0
    drawn = ids("one")
    assert drawn == ids("again")
    assert drawn != ids("other")
    for task in ("gsm8k", "alpaca"):
        assert sum(sample.startswith(task) for sample in drawn) == 3
    assert "6 of 16 prompts bundled" in specbench("report", "one").out


def test_equal_values_of_a_list_count_once() -> None:
    assert make_spec(temperatures=[0, 0.0, 1]).temperatures == (0.0, 1.0)


def test_top_k_reaches_the_sampling_and_the_header(
    specbench: Specbench, prompt_file: Path, answers: dict[str, Answer]
) -> None:
    seen: list[Sampling] = []

    def vanilla(request: Request) -> Completion:
        seen.append(request.sampling)
        return answering(1)(request)

    answers["vanilla"] = vanilla
    call = ("run", "--method", "pld", "--prompts", prompt_file, "--temperature", "0,1")
    assert specbench(*call, "--top-k", 5, "--output", "out").code == 0
    assert {sampling.temperature: sampling.top_k for sampling in seen} == {0.0: 0, 1.0: 5}
    assert read_run(Path("out")).header.spec.values.top_k == 5
    assert "--top-k 5" in specbench("show", "out").out


def test_a_task_outside_the_checkout_is_a_card_with_its_prompts_beside_it(
    specbench: Specbench, tmp_path: Path
) -> None:
    card = tmp_path / "riddles.toml"
    card.write_text('name = "riddles"\ntitle = "Riddles"\ndescription = "Short ones."\n')
    write_prompts(tmp_path / "riddles.jsonl", ["What has keys but opens no door?"])
    said = specbench("run", "--method", "pld", "--task", card, "--output", "out", code=0)
    assert "Riddles" in said.out
    assert "Riddles-like" not in said.out
    assert "1 bundled prompt\n" in said.out
    assert specbench("run", "--output", "out", "--resume").code == 0
    shown = specbench("show", "out").out.replace("\\\n", " ")
    _, _, command = " ".join(shown.split()).partition("specbench run")
    assert f"--task {card}" in command
    assert "--dataset" not in command


def test_methods_are_sorted_by_speedup_unless_asked(
    specbench: Specbench,
    prompt_file: Path,
    answers: dict[str, Answer],
) -> None:
    for method, seconds in (("vanilla", 2.0), ("pld", 4.0), ("lookahead", 1.0)):
        answers[method] = answering(1, seconds)
    methods = ("--method", "pld", "--method", "lookahead")
    specbench("run", *methods, "--prompts", prompt_file, "--output", "out")

    def order(*more: str) -> list[str]:
        lines = specbench("report", "out", *more).out.splitlines()
        first_words = [line.split()[0] for line in lines if line.split()]
        return [word for word in first_words if word in ("vanilla", "pld", "lookahead")][:3]

    assert order() == ["lookahead", "vanilla", "pld"]
    assert order("--sort", "paper") == ["vanilla", "pld", "lookahead"]
