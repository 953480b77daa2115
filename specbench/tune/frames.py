"""Profiles, cost curves and predictions as pandas frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from specbench.tune.predict import Prediction
from specbench.tune.replay import replay
from specbench.tune.stored_cost import Curve
from specbench.tune.stored_profile import Profile

if TYPE_CHECKING:
    from pandas import DataFrame


def profile_frame(profile: Profile, method_key: str) -> DataFrame:
    """One row a step: `prompt`, `prompt_tokens`, `accepted`, `rows`, and its expected `times`."""
    import pandas as pd

    columns = ["prompt", "prompt_tokens", "accepted", "rows", "times"]
    rows = [
        (walk.prompt, walk.prompt_tokens, count - 1, size, times)
        for walk in replay(profile, method_key)
        for count, size, times in zip(walk.accepts, walk.nodes, walk.chances, strict=True)
    ]
    return pd.DataFrame(rows, columns=columns)


def curve_frame(curve: Curve) -> DataFrame:
    """One row a number of rows: `block`, `threads`, `context`, `rows` and `steps` of vanilla."""
    import pandas as pd

    head, names = curve.header, ["block", "threads", "context", "rows"]
    axes = range(len(head.steps)), head.threads, head.lengths, head.rows
    index = pd.MultiIndex.from_product(axes, names=names)
    return pd.Series(np.array(head.steps).ravel(), index, name="steps").reset_index()


def prediction_frame(predictions: Iterable[Prediction]) -> DataFrame:
    """One row a setting, with the fields of `Prediction`."""
    import pandas as pd

    names = [name for name in Prediction.__slots__ if name != "options"]
    return pd.DataFrame([asdict(one) for one in predictions], columns=names)
