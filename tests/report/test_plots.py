"""Plots: drawn for any data, reproducible byte for byte, without overlapping text."""

import re
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.methods import described
from specbench.report.build import make_report
from specbench.report.plots import style
from specbench.report.plots.style import Plot, looks, save
from specbench.report.report import Report
from tests.analysis.run_factory import TASKS, TITLES, full_run, header, make_run, record
from tests.judge.changing import with_header, with_records
from tests.report.drawing import (
    EVERY_RUN,
    all_failed,
    nine_methods,
    report_of,
    two_machines,
    two_models,
    two_temperatures,
    with_limits,
    with_phases,
)


def drawn(report: Report) -> dict[str, tuple[Plot, Figure]]:
    return {plot.name: (plot, plot.figure) for plot in report.plots}


@pytest.mark.slow
@pytest.mark.parametrize("make", [*EVERY_RUN, with_phases, with_limits])
def test_every_plot_is_drawn_whatever_is_missing(make: Any) -> None:
    pictures = drawn(report_of(make))
    assert bool(pictures) == (make not in (all_failed, make_run))  # the last has no sample
    for plot, _ in pictures.values():
        image = imread(BytesIO(plot.images.png))
        assert image.shape[1] == 1080
        assert image.std() > 0.02


def test_a_run_gets_the_plots_that_it_has_data_for() -> None:
    names = set(drawn(report_of(nine_methods)))
    assert names == {"speedup", "speedup_by_mat", "positions"}
    assert set(drawn(report_of(with_phases))) == {"positions"}


def test_a_run_whose_requests_all_paused_has_a_report_without_plots() -> None:
    run = full_run(("vanilla", "sps:num_tokens=4"), num_samples=1)
    paused = tuple(replace(record, is_paused=True) for record in run.records)
    assert make_report(replace(run, records=paused), Bootstrap(200)).plots == ()


def test_a_task_without_a_speedup_has_no_point() -> None:
    done = ("gsm8k", "alpaca")
    few = with_records(full_run(), lambda one: one if one.key.task in done else None)
    (axes,) = drawn(make_report(few, Bootstrap(50)))["speedup"][1].axes
    points = np.array([one.get_xdata() for one in axes.get_lines() if one.get_marker() == "o"])
    assert points.shape == (3, 2) and points.min() > 1


def test_every_plot_has_a_title_caption_and_description() -> None:
    for plot, _ in drawn(report_of(nine_methods)).values():
        assert plot.title and plot.caption.endswith(".")
        assert "EAGLE-2" in plot.alt and re.search(r"\d", plot.alt)


def test_an_svg_is_reproducible_and_keeps_text_as_text() -> None:
    first, second = (drawn(make_report(two_models(), Bootstrap(200))) for _ in range(2))
    for name in first:
        svg = first[name][0].images.svg
        assert svg == second[name][0].images.svg
        assert b"<dc:date>" not in svg
        assert b"EAGLE-3</text>" in svg
        assert name != "speedup" or b">3.66</text>" in svg
    plot, figure = first["speedup"]
    assert save(figure) == plot.images  # of the same figure again


def test_control_characters_in_names_are_drawn_as_escapes() -> None:
    columns = {task: f"\x1b{task}" for task in TASKS}
    changes = {"methods__pld__title": "P\u241b[31mLD", "columns": columns, "id": "\x7f"}
    report = make_report(with_header(nine_methods(), **changes))
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


VISIONS = {  # Machado, Oliveira and Fernandes 2009, at full severity, on linear RGB
    "normal": np.eye(3),
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
}
XYZ = [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]


def cielab(colour: str, vision: Any) -> np.ndarray:
    """CIE L*, a* and b* of a colour as somebody sees it, for white of D65."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array(XYZ) @ np.clip(np.array(vision) @ linear, 0, 1) / (0.9505, 1, 1.0888)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(
    ("vision", "least"), [("normal", 30), ("deuteranopia", 19), ("protanopia", 19)]
)
def test_colours_of_methods_stay_apart_for_any_colour_vision(vision: str, least: float) -> None:
    """A distance of 2.3 in CIELAB is just noticed."""
    colours = {name: style._colour(name) for name in described()}
    seen = {name: cielab(colour, VISIONS[vision]) for name, colour in colours.items()}
    for (one, here), (other, there) in combinations(seen.items(), 2):
        assert np.linalg.norm(here - there) > least, f"{one} and {other}"
    assert all(np.linalg.norm(each - (100, 0, 0)) > 20 for each in seen.values())  # from white


def test_methods_keep_their_look_in_every_report() -> None:
    every = looks(report_of(nine_methods).results)
    assert len({look.marker for look in every.values()}) == len(every)
    few = looks(make_report(full_run(("vanilla", "eagle2", "pld"), ("gsm8k",))).results)
    assert few == {method: every[method] for method in few}


def test_variants_share_a_colour_and_are_numbered_and_an_unknown_method_has_its_own() -> None:
    spellings: Sequence[str] = ["vanilla", "pld:ngram=2", "pld", "bigram", *list(TITLES)[2:]]
    about = header(["vanilla"], ("gsm8k",))
    about["spec"]["values"]["methods"] = list(spellings)
    run = make_run([record(spelling) for spelling in spellings], about)
    found = looks(make_report(run).results)
    assert set(found) == set(spellings)
    assert [found[one].marker for one in ("pld:ngram=2", "pld")] == ["$1$", "$2$"]
    assert len({look.colour for look in found.values()}) == len(spellings) - 1


def test_thirty_variants_have_plots_that_are_as_high_as_they_need_and_say_nothing(
    recwarn: pytest.WarningsRecorder,
) -> None:
    swept = [
        f"pld:ngram={n},num_tokens={k},min_ngram=1" for n in range(1, 6) for k in range(2, 13, 2)
    ]
    report = make_report(full_run(("vanilla", *swept), ("gsm8k", "alpaca"), num_samples=2))
    pictures = drawn(report)
    for _, picture in pictures.values():
        images = save(picture)
        assert b"min_ngram" not in images.svg
        for axes in picture.axes:
            size = axes.get_window_extent()
            assert size.width > 416 and size.height > 250
    names = [text.get_text() for text in pictures["speedup"][1].axes[0].get_yticklabels()]
    assert len(names) == 30 and not recwarn.list
    bars = [patch.get_extents().width for patch in pictures["speedup"][1].axes[0].patches]
    assert bars == sorted(bars, reverse=True)
