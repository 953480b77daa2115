"""Plans count the prompts and passes that a difference needs."""

import numpy as np
import pytest

from specbench.analysis.planning import Pilot, pilot
from specbench.analysis.stats.bootstrap import Estimate, estimate, without_spread
from specbench.analysis.stats.significance import differs

PILOT = Pilot(num_prompts=48, prompt_variance=0.02**2, unit_sd=0.03)


def test_prompts_are_the_least_that_show_the_difference() -> None:
    needed = PILOT.prompts_for(0.10, 5)
    assert needed is not None
    assert PILOT.smallest(needed, 5) <= 0.10 < PILOT.smallest(needed - 1, 5)


def test_no_number_of_prompts_shows_less_than_passes_differ() -> None:
    assert PILOT.prompts_for(0.02, 3) is None
    assert PILOT.prompts_for(0.10, 20) is not None
    assert PILOT.smallest(1e9, 3) > 0.02


def test_a_planned_experiment_shows_the_difference_as_often_as_promised() -> None:
    """Simulated with the plan's number of prompts: 80 % of the tests find 10 %."""
    num_units = 5
    needed = PILOT.prompts_for(0.10, num_units)
    assert needed is not None
    sd = 0.02 * np.sqrt(48 / needed)
    generator, hits = np.random.default_rng(0), 0
    normal = generator.normal(size=400)
    normal = (normal - normal.mean()) / normal.std()
    for _ in range(500):
        units = np.log(1.10) + generator.normal(0, 0.03, num_units) + generator.normal(0, sd)
        value = float(np.exp(units.mean()))
        found = estimate(value, value * np.exp(sd * normal), needed - 1, units=(units,))
        p_value = differs(found, without_spread(1.0), found.machine)
        hits += p_value is not None and p_value < 0.05
    assert 0.72 < hits / 500 < 0.9


def test_a_pilot_is_of_the_median_variances_and_knows_what_it_lacks() -> None:
    resamples = np.exp(np.random.default_rng(0).normal(0, 0.05, 2000))
    units = np.log(np.array([0.98, 1.0, 1.03]))
    one = estimate(1.0, resamples, 20, units=(units,), machine=None)
    found = pilot([one], num_prompts=30, num_units=3)
    assert found is not None and found.unit_sd == pytest.approx(units.std(ddof=1))
    single = pilot([estimate(1.0, resamples, 20, machine=None)], 30, 1)
    assert single is not None and single.unit_sd is None
    assert pilot([Estimate(1.0)], 30, 3) is None
