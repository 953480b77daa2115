"""Every format names the prompts, weights and machine that its numbers come from."""

import pytest

from specbench.log.run import Run
from specbench.report.commands import full_command
from specbench.report.facts import prompts_text
from tests.analysis.run_factory import full_run, header
from tests.report.drawing import nine_methods, render, report_of, two_models
from tests.support.headers import make_header
from tests.support.texts import assert_in


@pytest.mark.parametrize("form", ["table", "markdown", "latex", "csv", "html", "json"])
def test_every_format_names_prompts_weights_and_machine(
    form: str,
) -> None:
    """Columns over bundled prompts have the name of the task, and weights have their commit."""
    page = " ".join(render(report_of(nine_methods), form).split())
    assert_in(
        page,
        "48 prompts bundled with specbench",
        "tiny (embedded, trained by specbench)",
        "Example CPU 9000",
    )
    for title in ("MT-bench", "HumanEval", "CNN/DM") if form != "csv" else ():
        is_below = form == "table" and f" {title} " in page and page.count("-like, n=8") >= 6
        assert f"{title}-like" in page or is_below
        assert f"& {title} &" not in page and f">{title}<" not in page
    page = " ".join(render(report_of(two_models), form).split())
    assert "16 published prompts" in page and "-like" not in page
    assert "Vicuna 13B (lmsys/vicuna-13b-v1.3 at 6566e9cb)" in page


def test_the_full_command_names_every_setting() -> None:
    described = header(["vanilla", "pld:ngram=2"], ("gsm8k", "alpaca"), (0.0, 1.0))
    described["spec"]["values"]["top_p"] = 0.9
    assert " ".join(full_command(make_header(described)).replace("\\", "").split()).startswith(
        "specbench run --model tiny --method pld:ngram=2 --dataset gsm8k,alpaca --prompts bundled "
        "--temperature 0,1 --top-p 0.9 --max-new-tokens 128 --repeats 1 --seed 0 --device cpu "
        "--dtype float32"
    )
    assert "--method vanilla " in full_command(make_header(header(["vanilla"])))


@pytest.mark.parametrize(
    ("prompts", "label"),
    [
        ({"source": "paper", "num_available": 80}, "8 of 80 published prompts: GSM8K"),
        ({"is_original": True}, "8 bundled prompts: GSM8K"),
        ({"source": "file", "origin": "mine.jsonl"}, "8 prompts of mine.jsonl: GSM8K"),
    ],
)
def test_prompts_are_named_by_source_and_number(prompts: dict[str, object], label: str) -> None:
    columns = {"gsm8k": "GSM8K"}
    run_header = make_header({"columns": columns, "prompts": [{"task": "gsm8k", **prompts}]})
    assert f"{prompts_text(run_header)}: {run_header.task_title('gsm8k')}" == label


HERE = "/home/me/models"


def of_folders() -> Run:
    methods = ("vanilla", f"medusa:weights={HERE}/a/head", f"medusa:weights={HERE}/b/head")
    model = {"label": "hf: llama, 135 M parameters", "source": f"{HERE}/hf", "is_embedded": False}
    return full_run(methods, ("gsm8k",), model=model)


@pytest.mark.parametrize("form", ["table", "markdown", "latex", "html"])
def test_a_report_names_folders_only_in_how_it_was_measured(form: str) -> None:
    page = " ".join(render(report_of(of_folders), form).split())
    before_how = page.partition('id="how"')[0]
    assert "hf: llama, 135 M parameters on" in before_how
    assert HERE not in before_how
    assert "a/head" in before_how and "b/head" in before_how


def test_a_page_shows_blanks_between_the_settings_of_a_method() -> None:
    """A browser drops a blank at the end of an inline block, so it stands between the blocks."""
    assert_in(
        render(full_run(("vanilla", "pld:ngram=1,min_ngram=1"), ("gsm8k",)), "html"),
        ".settings > span { display: inline-block; }",
        "<span>ngram=1,</span> <span>min_ngram=1</span>",
    )


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
    run_header = make_header({"methods": {spelling: {"title": ""} for spelling in spellings}})
    assert tuple(run_header.method(spelling).label.strip() for spelling in spellings) == labels
