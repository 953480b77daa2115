"""The parts of the generated Python functions: tests, changes, words and comments.

Every part carries its English phrase, its expression and an equal Python function.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specbench.zoo.text.grammar import words


@dataclass(frozen=True, slots=True)
class Part:
    """A phrase, an expression over `{x}` (and a constant `{k}`), and what it computes."""

    phrase: str
    code: str
    run: Callable[[Any, int], Any]
    word: str


NUMBER_TESTS = (
    Part("even", "{x} % 2 == 0", lambda x, k: x % 2 == 0, "even"),
    Part("odd", "{x} % 2 == 1", lambda x, k: x % 2 == 1, "odd"),
    Part("positive", "{x} > 0", lambda x, k: x > 0, "positive"),
    Part("negative", "{x} < 0", lambda x, k: x < 0, "negative"),
    Part("greater than {k}", "{x} > {k}", lambda x, k: x > k, "large"),
    Part("less than {k}", "{x} < {k}", lambda x, k: x < k, "small"),
    Part("at least {k}", "{x} >= {k}", lambda x, k: x >= k, "big"),
    Part("divisible by {k}", "{x} % {k} == 0", lambda x, k: x % k == 0, "divisible"),
    Part("not equal to {k}", "{x} != {k}", lambda x, k: x != k, "other"),
)
NUMBER_MAPS = (
    Part("", "{x}", lambda x, k: x, ""),
    Part("the squares of", "{x} * {x}", lambda x, k: x * x, "squared"),
    Part("the doubles of", "2 * {x}", lambda x, k: 2 * x, "doubled"),
    Part("the absolute values of", "abs({x})", lambda x, k: abs(x), "absolute"),
    Part("the opposites of", "-{x}", lambda x, k: -x, "negated"),
    Part("{k} more than each of", "{x} + {k}", lambda x, k: x + k, "shifted"),
    Part("{k} times each of", "{x} * {k}", lambda x, k: x * k, "scaled"),
    Part("the cubes of", "{x} ** 3", lambda x, k: x**3, "cubed"),
)
WORD_TESTS = (
    Part("longer than {k} letters", "len({x}) > {k}", lambda x, k: len(x) > k, "long"),
    Part("shorter than {k} letters", "len({x}) < {k}", lambda x, k: len(x) < k, "short"),
    Part("starting with a vowel", "{x}[0] in 'aeiou'", lambda x, k: x[0] in "aeiou", "vowel"),
    Part("ending with 'e'", "{x}.endswith('e')", lambda x, k: x.endswith("e"), "final_e"),
    Part("containing 'a'", "'a' in {x}", lambda x, k: "a" in x, "with_a"),
    Part("without an 'o'", "'o' not in {x}", lambda x, k: "o" not in x, "without_o"),
    Part("with exactly {k} letters", "len({x}) == {k}", lambda x, k: len(x) == k, "exact"),
)
WORD_MAPS = (
    Part("", "{x}", lambda x, k: x, ""),
    Part("in upper case", "{x}.upper()", lambda x, k: x.upper(), "upper"),
    Part("reversed", "{x}[::-1]", lambda x, k: x[::-1], "reversed"),
    Part(
        "with the first letter capitalized",
        "{x}.capitalize()",
        lambda x, k: x.capitalize(),
        "title",
    ),
    Part("without their first letter", "{x}[1:]", lambda x, k: x[1:], "tail"),
    Part("written twice", "{x} * 2", lambda x, k: x * 2, "double"),
)
WORDS = words(
    "apple bread cloud dog echo fish grape house ink jam kite lemon moon night orange pear queen "
    "river stone tree uncle violin water yard zebra ant book cat dance eagle"
)
NUMBER_ARGUMENTS = ("numbers", "values", "nums", "items", "xs", "data")
WORD_ARGUMENTS = ("words", "names", "strings", "tokens", "texts")
RESULTS = ("result", "output", "found", "selected")
PAIR_OPERATIONS = (
    ("sum", "{a} + {b}", lambda a, b: a + b),
    ("difference", "{a} - {b}", lambda a, b: a - b),
    ("product", "{a} * {b}", lambda a, b: a * b),
    ("maximum", "max({a}, {b})", max),
    ("minimum", "min({a}, {b})", min),
)
COMMENTS = (
    (" = []", ("start with an empty list", "collect the results here", "the list to be returned")),
    (" = {}", ("start with an empty dictionary", "collect the entries here")),
    (" = 0", ("start at zero", "nothing has been found so far", "the total so far")),
    (" = 1", ("start at one, so that the product is right",)),
    ("for ", ("look at each element in turn", "go through all elements", "check them one by one")),
    ("if ", ("only those that meet the condition", "is the condition met?", "check the condition")),
    ("return [", ("a list comprehension is enough", "build the list in one line")),
    ("return ", ("return the result", "that is the answer", "we are done")),
)
