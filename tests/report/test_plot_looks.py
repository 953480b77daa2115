"""The colours and markers of methods, which readers can tell apart in all plots."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from specbench.methods import described
from specbench.report.build import make_report
from specbench.report.plots import style
from specbench.report.plots.style import looks
from tests.analysis.run_factory import TITLES, full_run, header, make_run, record
from tests.report.drawing import nine_methods, report_of

# Machado, Oliveira and Fernandes 2009, at full severity, on linear RGB
VISIONS = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
"""The linear RGB that somebody sees, as a matrix [3, 3] times the RGB of a colour."""
XYZ_OF_RGB = np.array(
    [
        [0.4125, 0.3576, 0.1804],
        [0.2127, 0.7152, 0.0722],
        [0.0193, 0.1192, 0.9503],
    ]
)
"""The matrix from linear sRGB to CIE XYZ."""
WHITE = np.array([0.9505, 1, 1.0888])
"""CIE XYZ of white of D65."""


def cielab(colour: str, vision: str) -> np.ndarray:
    """CIE L*, a* and b* [3] of a colour as somebody sees it."""
    rgb = np.array(to_rgb(colour))
    linear_rgb = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen_rgb = np.clip(VISIONS[vision] @ linear_rgb, 0, 1)
    xyz = XYZ_OF_RGB @ seen_rgb / WHITE
    # f(t) = the cube root of t, or a line for small t
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def seen_colours(vision: str) -> dict[str, np.ndarray]:
    """CIE L*, a* and b* [3] of the colour of each method."""
    return {name: cielab(style._colour(name), vision) for name in described()}


@pytest.mark.parametrize(
    ("vision", "least"), [("normal", 30), ("deuteranopia", 19), ("protanopia", 19)]
)
def test_colours_of_methods_stay_apart_for_any_colour_vision(vision: str, least: float) -> None:
    """A distance of 2.3 in CIELAB is just noticeable."""
    colours = seen_colours(vision)
    for name, other in combinations(colours, 2):
        distance = np.linalg.norm(colours[name] - colours[other])
        assert distance > least, f"{name} and {other}"


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_of_methods_are_visible_on_white(vision: str) -> None:
    for name, colour in seen_colours(vision).items():
        assert np.linalg.norm(colour - (100, 0, 0)) > 20, name


def test_methods_keep_their_look_in_every_report() -> None:
    look_of = looks(report_of(nine_methods).labels)
    run_of_few = full_run(("vanilla", "eagle2", "pld"), ("gsm8k",))
    look_of_few = looks(make_report(run_of_few).labels)
    assert look_of_few == {method: look_of[method] for method in look_of_few}
    assert len({look.marker for look in look_of.values()}) == len(look_of)


def test_variants_share_a_colour_and_are_numbered() -> None:
    spellings = ["vanilla", "pld:ngram=2", "pld", "bigram", *list(TITLES)[2:]]
    run_header = header(["vanilla"], ("gsm8k",))
    run_header["spec"]["values"]["methods"] = spellings
    run = make_run([record(spelling) for spelling in spellings], run_header)
    look_of = looks(make_report(run).labels)
    assert set(look_of) == set(spellings)
    assert look_of["pld:ngram=2"].marker == "$1$"
    assert look_of["pld"].marker == "$2$"
    colours = {look.colour for look in look_of.values()}
    assert len(colours) == len(spellings) - 1
