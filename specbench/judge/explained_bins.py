"""The rows under MAT: the ratio of MAT by position in the answer, by context length and by turn."""

from collections import Counter
from collections.abc import Iterator, Sequence

from specbench.analysis.bin_ratios import BinRatio
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.step_bins import LEAST_PROMPTS, Bin
from specbench.judge.explanation import Explanation
from specbench.report import formats
from specbench.report.step_bins import HEADINGS
from specbench.report.table import Cell, Row, Tone
from specbench.report.texts import Note


def place_text(step_bin: Bin) -> str:
    """The axis and the range of a bin in words: "answer 32-63"."""
    return f"{HEADINGS[step_bin.axis]} {step_bin.range_text}"


def _shown(explanation: Explanation) -> list[BinRatio]:
    """The bins of each axis that has several bins and a claimed ratio of MAT in one of them."""
    num_bins = Counter(step_bin.axis for step_bin in explanation.bins)
    axes = {step_bin.axis for step_bin in explanation.bins if step_bin.is_claimed}
    return [
        step_bin
        for step_bin in explanation.bins
        if step_bin.axis in axes and num_bins[step_bin.axis] > 1
    ]


def bin_rows(explanation: Explanation) -> Iterator[Row]:
    """The rows under MAT, one per bin. A bin has the steps in a range of positions of the answer,
    of context lengths, or of turns.

    A row has MAT of the subject and of the reference, their ratio, and the interval of the ratio. A
    dash stands for a number or interval that is missing because too few prompts have steps in the
    bin.
    """
    for step_bin in _shown(explanation):
        mat_texts = [formats.mat(step_bin.subject), formats.mat(step_bin.reference)]
        ratio_text = interval_text = formats.NONE  # a dash
        tone: Tone = "unsure"
        if isinstance(step_bin.ratio, Estimate):
            ratio_text = f"x{step_bin.ratio.value:.3f}"
            if interval := step_bin.ratio.interval:
                interval_text = f"{interval.low:.3f}–{interval.high:.3f}"
            if step_bin.is_claimed:
                tone = "good" if step_bin.ratio.value > 1 else "bad"
        cells = (*map(Cell, mat_texts), Cell(ratio_text, tone), Cell(interval_text))
        yield Row(method="", label=f"· {place_text(step_bin)}", cells=cells)


def bin_notes(explanations: Sequence[Explanation]) -> Iterator[Note]:
    """The note that explains the rows under MAT, if there are any."""
    if any(map(_shown, explanations)):
        yield Note(
            "Under MAT",
            "MAT by position (answer tokens before the step), by context (prompt and answer tokens "
            "before it) and by turn. A range counts only prompts that have such steps on both "
            f"sides, and needs {LEAST_PROMPTS} or more of them.",
        )
