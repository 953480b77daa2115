"""How a word problem, its steps and its result become a request and an answer."""

from specbench.zoo.text.dialogue import Turn


def solved(problem: str, steps: list[str], result: int) -> Turn:
    """The problem, answered by one step a line and the result after `####`."""
    return Turn(problem, "\n".join([*steps, f"#### {result}"]))
