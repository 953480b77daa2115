"""Helpers for explanations."""

from specbench.judge.explanation import Explanation


def only(explanations: list[Explanation]) -> Explanation:
    (explanation,) = explanations
    return explanation


def effects(explanation: Explanation) -> dict[str, float]:
    return {factor.name: factor.effect.value for factor in explanation.product.factors}
