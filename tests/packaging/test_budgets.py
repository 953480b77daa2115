"""The code stays within its budgets: lines of each room, and habits that may not become more."""

from __future__ import annotations

from tests.packaging.budgets import code_lines, habits, over_budget

SOURCE = '''"""A module.

Its docstring counts nothing.
"""

import this  # counts


def f() -> str:
    """A docstring."""
    # A comment.
    return """two
lines"""
'''


def test_the_code_is_within_its_budgets() -> None:
    assert over_budget() == []


def test_only_lines_with_code_count() -> None:
    assert code_lines(SOURCE) == 4


def test_a_long_function_and_a_long_line_are_seen() -> None:
    source = "def f():\n" + "    x = 1\n" * 60 + "y = " + "1" * 92 + "  # fmt: " + "skip\n"
    assert set(habits(source).values()) == {1}
