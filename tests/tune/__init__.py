from typing import Any

import pytest

from specbench.settings import grids

WORK: dict[str, Any] = {"tasks": "gsm8k", "limit": 2, "dtype": "float32", "threads": 1}


def time_few_rows(patch: pytest.MonkeyPatch) -> None:
    """Let a cost curve have fewer numbers of rows, in tests that do not depend on times."""
    patch.setattr(grids, "STEP_ROWS", (1, 2, 4, 8, 16, 32, 65))
