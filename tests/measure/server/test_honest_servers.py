"""In simulated time, honest servers are neither refused nor accused, and lies are named."""

import numpy as np
import pytest

from benchmarks.honest_servers import LIES, UNSEEN, Draw, findings, is_named
from tests.support.tiny import CODEC

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(12))
def test_an_honest_run_is_neither_refused_nor_accused(seed: int) -> None:
    assert findings(Draw.drawn(np.random.default_rng(seed)), CODEC) <= {UNSEEN}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_named(lie: str) -> None:
    draw = Draw.drawn(np.random.default_rng(1), lie)
    assert is_named(draw, findings(draw, CODEC))
