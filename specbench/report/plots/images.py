"""Make image files of a figure.

Figures are made only with matplotlib's objects. Its global settings are changed only while a file
is written, and are then restored.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 120
"""The number of pixels per inch of a PNG."""
PLAIN_TEXT: Any = {"text.parse_math": False}
"""With this setting, a "$" in a name from outside does not begin a formula."""

_SVG_SHAPE = re.compile(rb"<(?:path|use|text) [^>]*>")
_LONG_NUMBER = re.compile(rb"\d+\.\d{3,}")
_SETTINGS: Any = {
    **PLAIN_TEXT,
    "svg.hashsalt": "specbench",  # so that elements have the same ids in each run
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's Type 3
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
}


class Images(NamedTuple):
    """The bytes of a figure in each format. The SVG keeps text as text. Neither has a date."""

    svg: bytes
    png: bytes


def save(figure: Figure) -> Images:
    """Return the figure's bytes as SVG and PNG with the same layout. Equal figures give equal
    bytes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    svg = BytesIO()
    png = BytesIO()
    with _drawing():
        # `savefig` would lay the figure out and draw it twice for each format.
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})  # no version
        figure.set_layout_engine("none")  # keeps the layout that the PNG made
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
    figure.set_dpi(DPI)  # drawing an SVG changes it to 72
    rounded_svg = _SVG_SHAPE.sub(lambda shape: _rounded(shape[0]), svg.getvalue())
    return Images(re.sub(rb"\n +", b"\n", rounded_svg), png.getvalue())  # without indentation


def _rounded(shape: bytes) -> bytes:
    """Round the coordinates of an SVG's shape to hundredths of a point, which looks the same."""
    return _LONG_NUMBER.sub(lambda number: b"%.2f" % float(number[0]), shape)


def save_pdf(figure: Figure) -> bytes:
    """Return a figure's bytes as PDF, with no date and no version. `save` has laid it out."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    pdf = BytesIO()
    no_metadata: dict[str, Any] = dict.fromkeys(("Creator", "Producer", "CreationDate"))
    with _drawing():
        FigureCanvasPdf(figure).print_pdf(pdf, metadata=no_metadata)
    figure.set_dpi(DPI)  # drawing a PDF changes it to 72
    return pdf.getvalue()


@contextmanager
def _drawing() -> Iterator[None]:
    """Use our settings of matplotlib in the block, and restore the earlier settings after it."""
    from matplotlib import rc_context

    with rc_context(_SETTINGS), warnings.catch_warnings():
        # A character that the machine's fonts lack is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
