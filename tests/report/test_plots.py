"""Plots: drawn for any data, reproducible byte for byte, without overlapping text."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from io import BytesIO
from itertools import combinations
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from specbench.analysis.calibration import calibrate
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.report.build import make_report
from specbench.report.plots import make_plots
from specbench.report.plots.style import Plot, looks, save
from specbench.report.report import Report
from specbench.types import TracedStep
from tests.analysis.run_factory import TITLES, full_run, header, make_run, record
from tests.report.drawing import (
    EVERY_RUN,
    all_failed,
    nine_methods,
    two_machines,
    two_models,
    two_temperatures,
    with_limits,
    with_phases,
)
from tests.support.headers import values_of


def traced(report: Report) -> Report:
    """The report with a made-up calibration of EAGLE-2."""
    steps = [
        TracedStep((-1, 0, 1), (None, -0.1 * i, -0.3 * i), (0, 1)[: 1 + i % 2]) for i in range(1, 9)
    ]
    source = replace(report.sources[0], calibration={("eagle2", 0.0): calibrate(steps)})
    report = replace(report, sources=(source, *report.sources[1:]))
    return replace(report, plots=make_plots(report))


@cache
def report_of(make: Any) -> Report:
    return make_report(make(), Bootstrap(200))


def drawn(report: Report) -> dict[str, tuple[Plot, Figure]]:
    return {plot.name: (plot, plot.figure) for plot in report.plots}


@pytest.mark.slow
@pytest.mark.parametrize("make", [*EVERY_RUN, with_phases, with_limits])
def test_every_plot_is_drawn_whatever_is_missing(make: Any) -> None:
    pictures = drawn(report_of(make))
    assert bool(pictures) == (make not in (all_failed, make_run))  # the last has no sample
    for _, picture in pictures.values():
        image = imread(BytesIO(save(picture).png))
        assert image.shape[1] == 1080
        assert image.std() > 0.02


def test_a_run_gets_the_plots_that_it_has_data_for() -> None:
    names = set(drawn(traced(report_of(nine_methods))))
    common = {"speedup", "mat", "speedup_by_mat", "accept_lengths", "positions"}
    assert names == common | {"calibration"}
    assert set(drawn(report_of(two_machines))) == common | {"machines"}
    assert "step_time" in drawn(report_of(with_phases))


def test_a_run_whose_requests_all_paused_has_a_report_without_plots() -> None:
    run = full_run(("vanilla", "sps:num_tokens=4"), num_samples=1)
    paused = tuple(replace(record, is_paused=True) for record in run.records)
    assert make_report(replace(run, records=paused), Bootstrap(200)).plots == ()


def test_every_plot_has_a_title_caption_and_description() -> None:
    for plot, _ in drawn(traced(report_of(nine_methods))).values():
        assert plot.title
        assert plot.caption.endswith(".")
        assert "EAGLE-2" in plot.alt
        assert re.search(r"\d", plot.alt)


def test_an_svg_is_reproducible_and_keeps_text_as_text() -> None:
    first, second = (drawn(make_report(two_models(), Bootstrap(200))) for _ in range(2))
    for name in first:
        svg = first[name][0].images.svg
        assert svg == second[name][0].images.svg
        assert b"<dc:date>" not in svg
        assert b"EAGLE-3</text>" in svg


def test_control_characters_in_names_are_drawn_as_escapes() -> None:
    described = values_of(report_of(nine_methods).sources[0].info)
    described["methods"]["pld"]["title"] = "P\u241b[31mLD"
    described["columns"] = {task: f"\x1b{title}" for task, title in described["columns"].items()}
    described["id"] = "\x7f"
    report = make_report(make_run(nine_methods().records, described))
    svgs = [save(picture).svg for _, picture in drawn(report).values()]
    assert any(b"P\\x1b[31mLD" in svg for svg in svgs)
    assert not any(sign in svg for svg in svgs for sign in (b"\x1b", b"\x7f", "\u241b".encode()))


def test_the_memory_limit_is_drawn_and_described() -> None:
    with_one, without = (
        drawn(report_of(make))["speedup_by_mat"] for make in (with_limits, nine_methods)
    )
    assert "limit that memory sets" in with_one[0].caption
    assert "memory" not in without[0].caption
    limit = report_of(with_limits).sources[0].metrics.cost("eagle2", 0.0).limit
    assert f"limit {limit.value:.2f}" in with_one[0].alt  # type: ignore[union-attr]
    ends = [line.get_ydata()[-1] for line in with_one[1].axes[0].get_lines()]  # type: ignore[index]
    assert limit.value in ends  # type: ignore[union-attr]


def texts(picture: Figure) -> list[Text]:
    """The visible texts of a figure, without tick labels beyond the ends of an axis."""
    beyond = set()
    for axes in picture.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks()
            beyond |= {t.label1 for t in ticks if not low <= t.get_loc() <= high}
    shown = [artist for artist in picture.findobj(Text) if isinstance(artist, Text)]
    is_in = {text: text.get_visible() and text not in beyond for text in shown}
    return [text for text in shown if text.get_text().strip() and is_in[text]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [nine_methods, two_temperatures, two_machines, two_models, with_phases, with_limits]
)
def test_no_texts_overlap(make: Any) -> None:
    for name, (_, picture) in drawn(report_of(make)).items():
        FigureCanvasAgg(picture).draw()
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts(picture)]
        inside = [(word, box) for word, box in boxes if box.x1 > 0 and box.y1 > 0]
        for (word, box), (other_word, other) in combinations(inside, 2):
            width = min(box.x1, other.x1) - max(box.x0, other.x0)
            height = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert width < 2 or height < 2, f"{name}: {word!r} and {other_word!r}"


def grey(colour: str) -> float:
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_methods_differ_in_grey_and_keep_their_look_in_every_report() -> None:
    every = looks(report_of(nine_methods).results)
    for one, other in combinations(every.values(), 2):
        is_apart = abs(grey(one.colour) - grey(other.colour)) > 0.05 or one.hatch != other.hatch
        assert is_apart, f"{one.label} and {other.label}"
        assert one.marker != other.marker
    few = looks(make_report(full_run(("vanilla", "eagle2", "pld"), ("gsm8k",))).results)
    assert few == {method: every[method] for method in few}


def test_two_spellings_of_a_method_and_an_unknown_one_have_looks_of_their_own() -> None:
    spellings: Sequence[str] = ["vanilla", "pld:ngram=2", "pld", "bigram", *list(TITLES)[2:]]
    described = header(["vanilla"], ("gsm8k",))
    described["spec"]["values"]["methods"] = list(spellings)
    run = make_run([record(spelling) for spelling in spellings], described)
    found = looks(make_report(run).results)
    assert set(found) == set(spellings)
    assert len({(look.colour, look.hatch) for look in found.values()}) == len(spellings)
