"""Plots can be drawn for any data, byte for byte the same, and their texts do not overlap."""

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
from matplotlib.path import Path
from matplotlib.text import Annotation, Text

from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.run import Run
from specbench.methods import described
from specbench.report.build import make_report
from specbench.report.plots import images, style
from specbench.report.plots.style import Plot, looks
from specbench.report.results import Report
from tests.analysis.run_factory import TASKS, TITLES, full_run, header, make_run, number, record
from tests.judge.changing import with_header, with_records
from tests.report.drawing import (
    EVERY_RUN,
    Make,
    all_failed,
    nine_methods,
    report_of,
    served,
    two_models,
    two_temperatures,
    with_limits,
    with_phases,
)


def plots_of(content: Report | Run) -> dict[str, Plot]:
    """The plots of a run, by name. Few resamples are enough, since no test needs the intervals."""
    report = content if isinstance(content, Report) else make_report(content, Bootstrap(50))
    return {plot.name: plot for plot in report.plots}


@pytest.mark.slow
@pytest.mark.parametrize("make", [*EVERY_RUN, with_phases, with_limits])
def test_every_plot_is_drawn_even_if_data_is_missing(make: Make) -> None:
    plots = plots_of(report_of(make))
    assert bool(plots) == (make not in (all_failed, make_run))  # the last has no sample
    for plot in plots.values():
        image = imread(BytesIO(plot.images.png))
        assert image.shape[1] == 1080
        assert image.std() > 0.02


def test_a_run_gets_the_plots_that_it_has_data_for_each_with_a_description() -> None:
    plots = plots_of(report_of(nine_methods))
    assert plots.keys() == {"speedup", "speedup_by_mat", "positions", "mat_along"}
    assert plots_of(report_of(with_phases)).keys() == {"positions", "mat_along"}
    run = full_run(("vanilla", "sps:num_tokens=4"), num_samples=1)
    paused = tuple(replace(record, is_paused=True) for record in run.records)
    assert not plots_of(replace(run, records=paused))
    for plot in plots.values():
        assert plot.title
        assert plot.caption.endswith(".")
        assert "EAGLE-2" in plot.alt
        assert re.search(r"\d", plot.alt)


def test_a_task_without_a_speedup_has_no_point() -> None:
    done = ("gsm8k", "alpaca")
    few = with_records(full_run(), lambda record: record if record.key.task in done else None)
    (axes,) = plots_of(few)["speedup"].figure.axes
    lines = [line for line in axes.get_lines() if line.get_marker() == "o"]
    points = np.array([line.get_xdata() for line in lines])
    assert points.shape == (3, 2)
    assert points.min() > 1


def test_an_svg_is_reproducible_and_keeps_text_as_text() -> None:
    first, second = plots_of(report_of(two_models)), plots_of(make_report(two_models()))
    for name, plot in first.items():
        svg = plot.images.svg
        assert svg == second[name].images.svg
        assert b"<dc:date>" not in svg
        assert b"EAGLE-3</text>" in svg
        assert name != "speedup" or b">3.66</text>" in svg
    plot = first["speedup"]
    assert images.save(plot.figure) == plot.images  # of the same figure again


@pytest.mark.slow
def test_a_pdf_is_reproducible_without_a_date_and_embeds_fonts_as_publishers_ask() -> None:
    first, second = plots_of(report_of(two_models)), plots_of(make_report(two_models()))
    for name, plot in first.items():
        assert plot.pdf.startswith(b"%PDF-")
        assert plot.pdf == second[name].pdf
        for word in (b"CreationDate", b"ModDate", b"Creator", b"Producer", b"/Type3"):
            assert word not in plot.pdf
        assert b"/TrueType" in plot.pdf or b"/CIDFontType2" in plot.pdf
    plot = first["speedup"]
    assert images.save(plot.figure) == plot.images  # as before the PDF was drawn


@pytest.mark.parametrize("make", [nine_methods, served])
def test_points_and_bars_are_labelled(make: Make) -> None:
    report = report_of(make)
    for plot in plots_of(report).values():
        if plot.name == "speedup":
            continue
        names = {text.get_text() for axes in plot.figure.axes for text in axes.texts}
        legends = {text.get_text() for box in plot.figure.legends for text in box.get_texts()}
        assert any(word.lower().startswith("eagle") for word in names)
        assert not any(word.lower().startswith("eagle") for word in legends)
    (axes,) = plots_of(report_of(nine_methods))["speedup"].figure.axes
    ends = {round(bar.get_width(), 6) for bar in axes.patches}  # type: ignore[attr-defined]
    numbers = [text for text in axes.texts if isinstance(text, Annotation)]
    assert len(numbers) == 8
    assert all(round(number.xy[0], 6) in ends for number in numbers)


def test_too_many_methods_to_label_get_a_legend() -> None:
    many = ("vanilla", *(f"pld:ngram={n},num_tokens={k}" for n in (1, 2, 3) for k in range(2, 7)))
    plot = plots_of(full_run(many, ("gsm8k", "alpaca"), num_samples=2))["speedup_by_mat"]
    assert len(plot.figure.legends[0].get_texts()) == 16


def test_control_characters_in_names_are_drawn_as_escapes() -> None:
    columns = {task: f"\x1b{task}" for task in TASKS}
    changes = {"methods__pld__title": "P\u241b[31mLD", "columns": columns, "id": "\x7f"}
    run = with_header(full_run(("vanilla", "pld")), **changes)
    svgs = [plot.images.svg for plot in plots_of(run).values()]
    assert any(b"P\\x1b[31mLD" in svg for svg in svgs)
    assert not any(sign in svg for svg in svgs for sign in (b"\x1b", b"\x7f", "\u241b".encode()))


def test_the_bandwidth_bound_is_drawn_and_described() -> None:
    report = report_of(with_limits)
    bound = number(report.sources[0].metrics.cost("eagle2", 0.0).bound)
    plot = plots_of(report)["speedup_by_mat"]
    assert "bandwidth bound" in plot.caption
    assert f"bandwidth bound {bound:.2f}" in plot.alt
    lines = plot.figure.axes[0].get_lines()
    ends = [line.get_ydata()[-1] for line in lines]  # type: ignore[index]
    assert bound in ends
    assert "memory" not in plots_of(report_of(nine_methods))["speedup_by_mat"].caption


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
    "make", [nine_methods, two_temperatures, two_models, with_phases, with_limits]
)
def test_no_texts_overlap(make: Make) -> None:
    for name, plot in plots_of(report_of(make)).items():
        FigureCanvasAgg(plot.figure).draw()
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts(plot.figure)]
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
    """A distance of 2.3 in CIELAB is just noticeable."""
    colours = {name: style._colour(name) for name in described()}
    seen = {name: cielab(colour, VISIONS[vision]) for name, colour in colours.items()}
    for (spelling, here), (other, there) in combinations(seen.items(), 2):
        assert np.linalg.norm(here - there) > least, f"{spelling} and {other}"
    assert all(np.linalg.norm(colour - (100, 0, 0)) > 20 for colour in seen.values())  # from white


def test_methods_keep_their_look_in_every_report() -> None:
    every = looks(report_of(nine_methods).labels)
    assert len({look.marker for look in every.values()}) == len(every)
    few = looks(make_report(full_run(("vanilla", "eagle2", "pld"), ("gsm8k",))).labels)
    assert few == {method: every[method] for method in few}


def test_variants_share_a_colour_and_are_numbered() -> None:
    spellings: Sequence[str] = ["vanilla", "pld:ngram=2", "pld", "bigram", *list(TITLES)[2:]]
    about = header(["vanilla"], ("gsm8k",))
    about["spec"]["values"]["methods"] = list(spellings)
    run = make_run([record(spelling) for spelling in spellings], about)
    look_of = looks(make_report(run).labels)
    assert set(look_of) == set(spellings)
    assert [look_of[spelling].marker for spelling in ("pld:ngram=2", "pld")] == ["$1$", "$2$"]
    assert len({look.colour for look in look_of.values()}) == len(spellings) - 1


@pytest.mark.slow
def test_plots_of_thirty_variants_have_enough_room(
    recwarn: pytest.WarningsRecorder,
) -> None:
    swept = [
        f"pld:ngram={n},num_tokens={k},min_ngram=1" for n in range(1, 6) for k in range(2, 13, 2)
    ]
    run = full_run(("vanilla", *swept), ("gsm8k", "alpaca"), num_samples=2)
    plots = plots_of(make_report(run, Bootstrap(50), sort="speedup"))
    for plot in plots.values():
        assert b"min_ngram" not in plot.images.svg
        for axes in plot.figure.axes:
            size = axes.get_window_extent()
            assert size.width > 416
            assert size.height > 250
    assert not recwarn.list
    axes = plots["speedup"].figure.axes[0]
    assert len(axes.get_yticklabels()) == 30
    bars = [patch.get_extents().width for patch in axes.patches]
    assert bars == sorted(bars, reverse=True)


def test_a_swept_option_is_plotted_with_its_front() -> None:
    run = full_run(("vanilla", "eagle2:depth=3", "eagle2:depth=5", "eagle2:depth=7", "pld"))
    report = make_report(run, Bootstrap(50))
    plot = plots_of(report)["sweep_EAGLE-2_depth"]
    assert all(f"depth={depth}:" in plot.alt for depth in (3, 5, 7))
    assert b"mean accepted tokens" in plot.images.svg
    assert b"Pareto front" in plot.images.svg
    shown = looks(report.labels).values()
    assert {look.marker for look in shown if look.is_numbered} == {"$1$", "$2$", "$3$"}
    assert all(isinstance(look.shape, Path) is look.is_numbered for look in shown)


def test_all_lines_of_a_panel_share_one_front() -> None:
    """A line that is slower and accepts less everywhere has no point with a ring."""
    steps_of: dict[str, tuple[float, tuple[int, ...]]] = {
        "vanilla": (3.0, (1,) * 6),
        "eagle2:depth=3,top_k=1": (1.5, (3, 3)),
        "eagle2:depth=5,top_k=1": (2.0, (3, 3)),
        "eagle2:depth=3,top_k=9": (4.0, (2, 2, 2)),
        "eagle2:depth=5,top_k=9": (5.0, (2, 2, 2)),
    }
    records = [
        record(method, sample, decode_s=seconds, accept_lengths=lengths)
        for sample in ("a", "b")
        for method, (seconds, lengths) in steps_of.items()
    ]
    plot = plots_of(make_run(records, header([*steps_of], ("gsm8k",))))["sweep_EAGLE-2_depth"]
    *lines, ring = plot.figure.axes[0].get_lines()
    assert np.asarray(ring.get_xdata()).tolist() == [3]
    # Points on the same place are visible, since the later ones are smaller.
    sizes = [line.get_markersize() for line in lines]
    assert len({*sizes}) == 2
    assert sizes == sorted(sizes, reverse=True)
    assert plot.caption.endswith("the earlier line has the larger points.")
