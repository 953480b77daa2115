"""Put profiles, cost curves and predictions into data frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from specbench.settings.cost_curve import Curve
from specbench.tune.predict import Prediction
from specbench.tune.profile_file import Profile
from specbench.tune.replay import replay

if TYPE_CHECKING:
    from pandas import DataFrame


def profile_frame(profile: Profile, method_key: str) -> DataFrame:
    """Make a frame with one row per step of a replayed setting.

    The columns are `prompt`, `prompt_tokens`, `accepted`, `rows`, and `times`: how often the step
    is expected.
    """
    import pandas as pd

    columns = ["prompt", "prompt_tokens", "accepted", "rows", "times"]
    rows = [
        (walk.prompt, walk.prompt_tokens, step.emitted - 1, step.rows, step.times)
        for walk in replay(profile, method_key)
        for step in walk.steps
    ]
    return pd.DataFrame(rows, columns=columns)


def curve_frame(curve: Curve) -> DataFrame:
    """Make a frame with one row per `block`, number of `threads`, `context` and number of `rows`.

    `context` is a number of tokens. The column `steps` has the time of such a step of the target,
    in steps of vanilla.
    """
    import pandas as pd

    blocks = range(len(curve.steps))
    axes = {"block": blocks, "threads": curve.threads, "context": curve.lengths, "rows": curve.rows}
    index = pd.MultiIndex.from_product([*axes.values()], names=[*axes])
    return pd.Series(np.array(curve.steps).ravel(), index, name="steps").reset_index()


def prediction_frame(predictions: Iterable[Prediction]) -> DataFrame:
    """Make a frame with one row per setting, and the fields of `Prediction` except `options`."""
    import pandas as pd

    columns = [name for name in Prediction.__slots__ if name != "options"]
    return pd.DataFrame([asdict(prediction) for prediction in predictions], columns=columns)
