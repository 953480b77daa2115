"""In 200 simulated runs, a method that is recommended as the fastest is the fastest.

None of several equal methods is recommended.
"""

from benchmarks.recommendations import STEPS, simulate


def test_a_method_recommended_as_the_fastest_is_not_truly_slower() -> None:
    outcomes = [*simulate(25)]
    assert sum(outcome.num_runs for outcome in outcomes) == 200
    after_three = [outcome for outcome in outcomes if outcome.design == "3 passes"]
    # One pass supports no recommendation, three do.
    assert sum(outcome.num_helpful for outcome in outcomes) == sum(
        outcome.num_helpful for outcome in after_three
    )
    assert min(outcome.num_helpful for outcome in after_three) == 25
    num_fastest = {outcome.step: outcome.num_fastest for outcome in after_three}
    assert [*num_fastest] == [*STEPS] and num_fastest[0.0] == 0
    assert num_fastest[0.3] >= 20
    assert sum(outcome.num_wrong for outcome in outcomes) <= 0.05 * sum(num_fastest.values())
