"""Every format says which prompts, weights and machine its numbers are of."""

import pytest

from specbench.report.build import make_report
from specbench.report.facts import full_command
from tests.analysis.run_factory import full_run, make_run
from tests.report.drawing import nine_methods, render, report_of, two_models
from tests.support.headers import make_header

FORMATS = ("table", "markdown", "latex", "csv", "html", "json")
MACHINE = "Example CPU 9000"


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_which_prompts_how_many_which_weights_and_which_machine(
    form: str,
) -> None:
    text = render(report_of(nine_methods), form)
    assert "48 prompts bundled with specbench" in text
    assert "tiny (embedded, trained by specbench)" in text
    assert MACHINE in text


@pytest.mark.parametrize("form", sorted({*FORMATS} - {"csv"}))
def test_columns_over_bundled_prompts_are_called_like_the_task(form: str) -> None:
    text = " ".join(render(report_of(nine_methods), form).split())
    for title in ("MT-bench", "HumanEval", "CNN/DM"):
        is_below = form == "table" and f" {title} " in text and text.count("-like, n=8") >= 6
        assert f"{title}-like" in text or is_below
        assert f"& {title} &" not in text and f">{title}<" not in text


@pytest.mark.parametrize("form", FORMATS)
def test_published_prompts_and_weights_are_named_with_their_commit(form: str) -> None:
    text = " ".join(render(two_models()[1], form).split())
    assert "16 published prompts" in text and "-like" not in text
    assert "Vicuna 13B (lmsys/vicuna-13b-v1.3 at 6566e9cb)" in text


@pytest.mark.parametrize(
    ("methods", "named"), [(["vanilla"], "vanilla"), (["vanilla", "pld"], "pld")]
)
def test_a_command_names_vanilla_where_it_is_alone(methods: list[str], named: str) -> None:
    words = full_command(full_run(methods, num_samples=1).header).split()
    assert words[words.index("--method") + 1] == named


def labelled(**prompts: object) -> str:
    run = full_run(("vanilla", "pld"), ("gsm8k",), prompts=[{"task": "gsm8k", **prompts}])
    report = make_report(make_run(run.records, run.header))
    return f"{report.results.prompts}: {report.results.tasks[0].title}"


def test_a_part_of_the_prompts_is_given_with_the_whole() -> None:
    assert labelled(source="paper", num_available=80) == "8 of 80 published prompts: GSM8K"


def test_bundled_prompts_that_are_a_tasks_own_imitate_nothing() -> None:
    assert labelled(is_original=True) == "8 bundled prompts: GSM8K"


def test_a_prompt_file_is_named() -> None:
    assert labelled(source="file", origin="mine.jsonl") == "8 prompts of mine.jsonl: GSM8K"


@pytest.mark.parametrize("form", ["table", "markdown", "latex", "html"])
def test_a_report_shows_no_folder_of_the_machine_but_in_how_it_was_measured(form: str) -> None:
    here = "/home/me/models"
    methods = ("vanilla", f"medusa:weights={here}/a/head", f"medusa:weights={here}/b/head")
    model = {"label": "hf: llama, 135 M parameters", "source": f"{here}/hf", "is_embedded": False}
    run = full_run(methods, ("gsm8k",), model=model)
    text = " ".join(render(make_run(run.records, run.header), form).split())
    text = text.partition('id="how"')[0]
    assert "hf: llama, 135 M parameters on" in text and here not in text
    assert "a/head" in text and "b/head" in text


@pytest.mark.parametrize(
    ("spellings", "labels"),
    [
        (("pld:ngram=1,min_ngram=1", "pld:ngram=2,min_ngram=1"), ("(ngram=1)", "(ngram=2)")),
        (("pld:ngram=1,min_ngram=1", "pld"), ("(ngram=1, min_ngram=1)", "")),
        (
            ("sps:weights=/a/x/head", "sps:weights=/a/y/head"),
            ("(weights=x/head)", "(weights=y/head)"),
        ),
        (("sps:weights=org/head", "pld:ngram=3"), ("(weights=org/head)", "(ngram=3)")),
    ],
)
def test_a_label_has_the_options_that_vary_and_no_folder(
    spellings: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    header = make_header({"methods": {one: {"title": ""} for one in spellings}})
    assert tuple(header.method(one).label.strip() for one in spellings) == labels
