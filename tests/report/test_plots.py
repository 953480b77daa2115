"""Plots can be drawn for any data, byte for byte the same, and their texts do not overlap."""

import re
from dataclasses import replace
from io import BytesIO
from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.path import Path
from matplotlib.text import Annotation, Text

from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.run import Run
from specbench.report.build import make_report
from specbench.report.plots import images
from specbench.report.plots.style import Plot, looks
from specbench.report.results import Report
from tests.analysis.run_factory import TASKS, full_run, header, make_run, number, record
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
    assert bool(plots) == (make not in (all_failed, make_run))  # these have no samples
    for plot in plots.values():
        image = imread(BytesIO(plot.images.png))
        assert image.shape[1] == 1080
        assert image.std() > 0.02


def test_a_run_gets_the_plots_that_it_has_data_for() -> None:
    plots = plots_of(report_of(nine_methods))
    assert plots.keys() == {"speedup", "speedup_by_mat", "positions", "mat_along"}
    assert plots_of(report_of(with_phases)).keys() == {"positions", "mat_along"}
    run = full_run(("vanilla", "sps:num_tokens=4"), num_samples=1)
    paused_run = with_records(run, lambda record: replace(record, is_paused=True))
    assert not plots_of(paused_run)


def test_every_plot_has_a_description() -> None:
    for plot in plots_of(report_of(nine_methods)).values():
        assert plot.title
        assert plot.caption.endswith(".")
        assert "EAGLE-2" in plot.alt
        assert re.search(r"\d", plot.alt)


def test_a_task_without_a_speedup_has_no_point() -> None:
    tasks = ("gsm8k", "alpaca")
    run = with_records(full_run(), lambda record: record if record.key.task in tasks else None)
    (axes,) = plots_of(run)["speedup"].figure.axes
    lines_with_points = [line for line in axes.get_lines() if line.get_marker() == "o"]
    speedups = np.array([line.get_xdata() for line in lines_with_points])  # [methods, tasks]
    assert speedups.shape == (3, 2)
    assert speedups.min() > 1


def test_an_svg_is_reproducible_and_keeps_text_as_text() -> None:
    plots, plots_again = plots_of(report_of(two_models)), plots_of(make_report(two_models()))
    for name, plot in plots.items():
        svg = plot.images.svg
        assert svg == plots_again[name].images.svg
        assert b"<dc:date>" not in svg
        assert b"EAGLE-3</text>" in svg
    plot = plots["speedup"]
    assert b">3.66</text>" in plot.images.svg
    assert images.save(plot.figure) == plot.images  # of the same figure again


@pytest.mark.slow
def test_a_pdf_is_reproducible_without_a_date_and_embeds_fonts_as_publishers_ask() -> None:
    plots, plots_again = plots_of(report_of(two_models)), plots_of(make_report(two_models()))
    for name, plot in plots.items():
        assert plot.pdf.startswith(b"%PDF-")
        assert plot.pdf == plots_again[name].pdf
        for word in (b"CreationDate", b"ModDate", b"Creator", b"Producer", b"/Type3"):
            assert word not in plot.pdf
        assert b"/TrueType" in plot.pdf or b"/CIDFontType2" in plot.pdf
    plot = plots["speedup"]
    assert images.save(plot.figure) == plot.images  # as before the PDF was drawn


@pytest.mark.parametrize("make", [nine_methods, served])
def test_points_of_methods_are_labelled(make: Make) -> None:
    plots = plots_of(report_of(make))
    for plot in [plot for name, plot in plots.items() if name != "speedup"]:
        labels = [text for axes in plot.figure.axes for text in axes.texts]
        entries = [text for legend in plot.figure.legends for text in legend.get_texts()]
        assert any(label.get_text().lower().startswith("eagle") for label in labels)
        assert not any(entry.get_text().lower().startswith("eagle") for entry in entries)


def test_every_bar_has_a_number_at_its_end() -> None:
    (axes,) = plots_of(report_of(nine_methods))["speedup"].figure.axes
    ends = {round(bar.get_width(), 6) for bar in axes.patches}  # type: ignore[attr-defined]
    numbers = [text for text in axes.texts if isinstance(text, Annotation)]
    assert len(numbers) == 8
    assert {round(annotation.xy[0], 6) for annotation in numbers} <= ends


def test_too_many_methods_to_label_get_a_legend() -> None:
    variants = [f"pld:ngram={n},num_tokens={k}" for n in (1, 2, 3) for k in range(2, 7)]
    plots = plots_of(full_run(["vanilla", *variants], ("gsm8k", "alpaca"), num_samples=2))
    (legend,) = plots["speedup_by_mat"].figure.legends
    assert len(legend.get_texts()) == 16


def test_control_characters_in_names_are_drawn_as_escapes() -> None:
    escape, delete, picture_of_escape = "\x1b", "\x7f", "\u241b"
    run = with_header(
        full_run(("vanilla", "pld")),
        methods__pld__title=f"P{picture_of_escape}[31mLD",
        columns={task: f"{escape}{task}" for task in TASKS},
        id=delete,
    )
    svgs = [plot.images.svg.decode() for plot in plots_of(run).values()]
    assert any(r"P\x1b[31mLD" in svg for svg in svgs)
    assert not {escape, delete, picture_of_escape} & set("".join(svgs))


def test_the_bandwidth_bound_is_drawn_and_described() -> None:
    report = report_of(with_limits)
    cost = report.sources[0].metrics.cost("eagle2", 0.0)
    bound = number(cost.bound)
    plot = plots_of(report)["speedup_by_mat"]
    assert "bandwidth bound" in plot.caption
    assert f"bandwidth bound {bound:.2f}" in plot.alt
    lines = plot.figure.axes[0].get_lines()
    ends = [line.get_ydata()[-1] for line in lines]  # type: ignore[index]
    assert bound in ends
    plot_without_bound = plots_of(report_of(nine_methods))["speedup_by_mat"]
    assert "memory" not in plot_without_bound.caption


def visible_texts(figure: Figure) -> list[Text]:
    """The visible texts of a figure, without tick labels beyond the ends of an axis."""
    hidden_labels = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks()
            hidden_labels |= {tick.label1 for tick in ticks if not low <= tick.get_loc() <= high}
    texts = [artist for artist in figure.findobj(Text) if isinstance(artist, Text)]
    return [
        text
        for text in texts
        if text.get_visible() and text.get_text().strip() and text not in hidden_labels
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [nine_methods, two_temperatures, two_models, with_phases, with_limits]
)
def test_no_texts_overlap(make: Make) -> None:
    for name, plot in plots_of(report_of(make)).items():
        FigureCanvasAgg(plot.figure).draw()
        boxes = {text: text.get_window_extent() for text in visible_texts(plot.figure)}
        drawn = [text for text, box in boxes.items() if box.x1 > 0 and box.y1 > 0]
        for text, other in combinations(drawn, 2):
            # the overlap in pixels, which is negative if there is a gap
            box, other_box = boxes[text], boxes[other]
            width = min(box.x1, other_box.x1) - max(box.x0, other_box.x0)
            height = min(box.y1, other_box.y1) - max(box.y0, other_box.y0)
            assert width < 2 or height < 2, f"{name}: {text.get_text()!r} and {other.get_text()!r}"


@pytest.mark.slow
def test_plots_of_thirty_variants_have_enough_room(
    recwarn: pytest.WarningsRecorder,
) -> None:
    variants = [
        f"pld:ngram={n},num_tokens={k},min_ngram=1" for n in range(1, 6) for k in range(2, 13, 2)
    ]
    run = full_run(["vanilla", *variants], ("gsm8k", "alpaca"), num_samples=2)
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
    bar_lengths = [bar.get_extents().width for bar in axes.patches]
    assert bar_lengths == sorted(bar_lengths, reverse=True)


def test_a_swept_option_is_plotted_with_its_front() -> None:
    run = full_run(("vanilla", "eagle2:depth=3", "eagle2:depth=5", "eagle2:depth=7", "pld"))
    report = make_report(run, Bootstrap(50))
    plot = plots_of(report)["sweep_EAGLE-2_depth"]
    assert all(f"depth={depth}:" in plot.alt for depth in (3, 5, 7))
    assert b"mean accepted tokens" in plot.images.svg
    assert b"Pareto front" in plot.images.svg
    all_looks = looks(report.labels).values()
    assert {look.marker for look in all_looks if look.is_numbered} == {"$1$", "$2$", "$3$"}
    assert all(isinstance(look.shape, Path) is look.is_numbered for look in all_looks)


def test_all_lines_of_a_panel_share_one_front() -> None:
    """A line that is slower and accepts less everywhere has no point with a ring."""
    # seconds and accept lengths
    steps_of: dict[str, tuple[float, tuple[int, ...]]] = {
        "vanilla": (3.0, (1,) * 6),
        "eagle2:depth=3,top_k=1": (1.5, (3, 3)),
        "eagle2:depth=5,top_k=1": (2.0, (3, 3)),
        "eagle2:depth=3,top_k=9": (4.0, (2, 2, 2)),
        "eagle2:depth=5,top_k=9": (5.0, (2, 2, 2)),
    }
    records = [
        record(method, sample, decode_s=decode_s, accept_lengths=accept_lengths)
        for sample in ("a", "b")
        for method, (decode_s, accept_lengths) in steps_of.items()
    ]
    run = make_run(records, header([*steps_of], ("gsm8k",)))
    plot = plots_of(run)["sweep_EAGLE-2_depth"]
    *lines, ring = plot.figure.axes[0].get_lines()
    assert np.asarray(ring.get_xdata()).tolist() == [3]  # the MAT of the front
    # Points on the same place are visible, since the later ones are smaller.
    sizes = [line.get_markersize() for line in lines]
    assert len(set(sizes)) == 2
    assert sizes == sorted(sizes, reverse=True)
    assert plot.caption.endswith("the earlier line has the larger points.")
