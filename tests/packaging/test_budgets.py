"""The code stays within the limits of house.toml, and its counts are right."""

from __future__ import annotations

import pytest

from tests.packaging.budgets import (
    calls_of,
    functions_over_60_lines,
    long_files,
    over_budget,
    skipped_by_the_formatter,
    wrong_reasons,
)
from tests.packaging.readability import count
from tests.packaging.rooms import HOUSE

SOURCE = '''"""A module.

Its docstring counts nothing.
"""

import this  # a line of code, and no statement


def f(found) -> str:
    """A docstring."""
    # A comment.
    return """two
lines"""
'''


def test_the_code_is_within_its_budgets() -> None:
    assert over_budget() == []


def test_calls_are_counted_by_their_name() -> None:
    sources = ["find_model(name)", "cards.find_model(a)\nfind_models()\nfind_model"]
    assert calls_of("find_model", sources) == 2


def test_each_file_of_over_300_lines_has_its_reason() -> None:
    assert wrong_reasons(long_files(), HOUSE["long_files"]) == []


def test_a_long_file_without_a_reason_and_a_reason_without_a_file_are_reported() -> None:
    lines = {"long.py": 301, "empty.py": 302}
    assert wrong_reasons(lines, {"empty.py": "", "short.py": "one class"}) == [
        "long.py has 301 lines, and [long_files] of house.toml gives no reason",
        "empty.py has 302 lines, and [long_files] of house.toml gives no reason",
        "short.py is in [long_files] of house.toml, and has at most 300 lines",
    ]


def test_comments_docstrings_and_imports_are_not_statements() -> None:
    counts = count(SOURCE)
    assert (counts.code_lines, counts.body_lines, counts.statements) == (4, 3, 2)
    assert counts.tokens == len(["def", "f", "(", "found", ")", "->", "str", ":", "return", "text"])


@pytest.mark.parametrize("source", ["def f(one): ...", "for found in x: ...", "y = made + 1"])
def test_a_vague_name_is_counted_where_it_is_used(source: str) -> None:
    assert count(source).vague_names == 1


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ('"s" * (n != 1)', 1),
        ("is_open * [x]", 1),
        ('f"{n}" * (not x)', 1),
        ("(x,) * bool(y)", 1),
        ('"," * a.is_last', 1),
        ('"-" * 8', 0),
        ("x * (n != 1)", 0),
        ("[0] * n", 0),
        ("rows * is_row", 0),
    ],
)
def test_only_a_text_or_a_list_times_a_condition_is_counted(source: str, number: int) -> None:
    assert count(source).conditional_products == number


def test_constants_in_one_statement_are_counted_at_module_level() -> None:
    assert count("A, B = 1, 2\ndef f():\n    a, b = 1, 2\n").packed_constants == 1


def test_a_line_of_25_tokens_is_wide() -> None:
    sums = [" + ".join("x" * number) for number in (12, 13)]
    assert [count(line).wide_lines for line in sums] == [0, 1]


def test_long_functions_and_formatter_skips_are_counted() -> None:
    source = "def f():\n" + "    x = 1\n" * 60 + "y = 1  # fmt: " + "skip\n"
    assert functions_over_60_lines(source) == 1
    assert skipped_by_the_formatter(source) == 1
