"""The texts, the plot and the flags of a tune of servers."""

from dataclasses import replace

import pytest

from specbench.analysis.stats.estimates import Estimate
from specbench.measure.server.engine import load_engine
from specbench.registry import MethodChoice
from specbench.report.load_notes import break_even_numbers
from specbench.tune.served.draft_size import DraftSize, tuned_methods
from specbench.tune.served.plots import ratios_by_load
from specbench.tune.served.results import result_lines, speculation_flags
from tests.measure.server.setups import setup_of
from tests.measure.server.test_engine_methods import words_of
from tests.tune.served.test_served_tuning import FixedBench, tuned


def ratio(size: DraftSize, load: int) -> float:
    """Throughput relative to plain decoding.

    At load 1, K=2 is a little faster than K=1. At load 8, plain decoding is fastest.
    """
    by_load = {1: {0: 1.0, 1: 1.30, 2: 1.31, 3: 1.2}, 8: {0: 1.0, 1: 0.8, 2: 0.7, 3: 0.6}}
    return by_load[load][size.num_tokens]


def test_the_texts_name_the_break_even_load_the_noise_and_ties() -> None:
    lines = [*result_lines(tuned(FixedBench(ratio, spread=0.04), [1, 8]))]
    assert lines[0].startswith("Throughput of ngram / throughput of vanilla: 1.30x at 1 request,")
    assert (
        "falls to 1 at about 3.5 requests at once, between the measured loads 1 and 8" in lines[0]
    )
    assert lines[1].startswith("Two equal servers differ here by up to 2.")
    assert lines[2:] == [
        "At 1, K=1 and K=2 differ by less, so the smallest was chosen.",
        "Chosen by requests at once: K=1 from 1, plain from 2",
    ]
    one_pass = [*result_lines(tuned(FixedBench(ratio), [1, 8], passes=1))]
    unknown_noise = "One pass does not show how much two equal servers differ."
    assert f"{unknown_noise} Use more passes (--repeats)." in one_pass


def test_a_method_may_pay_at_larger_loads_only() -> None:
    slower, faster = Estimate(0.9), Estimate(1.2)
    assert break_even_numbers({1: slower, 4: faster}) == {}
    assert break_even_numbers({1: slower, 4: slower})["nowhere"] == 1


def test_the_plot_has_a_line_for_each_size_that_was_measured_in_turns() -> None:
    plot = ratios_by_load(tuned(FixedBench(ratio), [1, 8]), "vLLM 0.33.0")
    assert "K=2, 1.31, at 1; plain, 1.00, at 8" in plot.alt
    (axes,) = plot.figure.axes
    labels = [text.get_text() for text in plot.figure.legends[0].get_texts()]
    assert labels == ["K=1", "K=2"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8"]


def test_a_size_that_failed_at_the_first_load_has_a_line_too() -> None:
    result = tuned(FixedBench(ratio), [1, 8])
    first_choice, *later_choices = result.choices
    plain, _, *larger_sizes = first_choice.measured  # without K=1
    first_choice = replace(first_choice, measured=(plain, *larger_sizes))
    plot = ratios_by_load(replace(result, choices=(first_choice, *later_choices)), "vLLM 0.33.0")
    labels = [text.get_text() for text in plot.figure.legends[0].get_texts()]
    assert labels == ["K=2", "K=1"]


@pytest.mark.parametrize("number", range(9))
def test_sglangs_flags_encode_the_size(number: int) -> None:
    """The first nine sizes: chains of 1 to 3 draft tokens, and six trees."""
    asked = MethodChoice("eagle3", {"num_tokens": "3"})
    (method,) = tuned_methods([asked], load_engine("sglang"))
    size = method.sizes[number]

    # The words of flags, each followed by its value: "--speculative-num-steps", "3", ...
    words = speculation_flags(words_of(setup_of(str(size.method), engine="sglang")))
    flags = dict(zip(words[::2], words[1::2], strict=True))
    num_steps = int(flags["--speculative-num-steps"])
    top_k = int(flags["--speculative-eagle-topk"])
    num_nodes = int(flags["--speculative-num-draft-tokens"])

    assert num_nodes == size.num_tokens + 1  # with the root
    options = f"num_tokens={num_steps}"
    if top_k == 1:  # a chain has a node per step, and the root
        assert num_nodes == num_steps + 1
    else:
        options += f",eagle_topk={top_k},num_draft_tokens={num_nodes}"
    assert size.options_text == options
