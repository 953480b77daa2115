"""Compare two runs."""

from typing import Any

from specbench.analysis.tables import tabled
from specbench.judge.comparison import Comparison, compare_tabled
from specbench.log.run import Run


def compare(reference: Run, subject: Run, **options: Any) -> Comparison:
    return compare_tabled(tabled(reference), tabled(subject), **options)
