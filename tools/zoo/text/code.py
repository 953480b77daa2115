"""Family `humaneval`: Python functions that are made of parts, with a docstring and true examples.

The docstring's examples are computed from the parts and not by the answer's code, so they check the
answer independently.
"""

import random
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from tools.zoo.text.code_parts import (
    NUMBER_MAPS,
    NUMBER_TESTS,
    PAIR_OPERATIONS,
    WORD_MAPS,
    WORD_TESTS,
    body,
    changed,
    code_dialogue,
    either,
    joined,
    names,
    some_numbers,
    some_words,
    type_hints,
)
from tools.zoo.text.dialogue import Dialogue

NUMBER_ARGUMENTS, NUMBER_NAMES = names("number_arguments"), names("number_names")
RESULTS = names("results")
_TOTALS: dict[str, Callable[[list[int]], int]] = {
    "sum": sum,
    "count": len,
    "largest": lambda numbers: max(numbers, default=0),
    "product": prod,
}


def sample_code(rng: random.Random) -> Dialogue:
    """Write one function to complete."""
    number_list, word_list = (partial(_filtered, kind=kind) for kind in ("numbers", "words"))
    kinds: tuple[Callable[[random.Random], Dialogue], ...] = (
        number_list, _number_total, word_list, _word_count, _mapping, _digits, _up_to, _pairs,
        _search,
    )  # fmt: skip
    return rng.choices(kinds, (4, 4, 4, 2, 2, 2, 2, 3, 2))[0](rng)


def _filtered(rng: random.Random, kind: str) -> Dialogue:
    """Write a function that filters the elements of a list, and may change them."""
    is_numbers = kind == "numbers"
    test = rng.choice(NUMBER_TESTS if is_numbers else WORD_TESTS)
    change = rng.choice(NUMBER_MAPS if is_numbers else WORD_MAPS)
    k, j = rng.randint(2, 6), rng.randint(2, 9)
    argument = rng.choice(NUMBER_ARGUMENTS if is_numbers else names("word_arguments"))
    element = "int" if is_numbers else "str"
    imports, hint, returned = type_hints(rng, element, f"list[{element}]")
    name = joined(
        rng.choice(("get", "select", "find", "collect", "keep")), test.word, change.word, kind
    )
    what, clause = "the words", test.text(k)
    if is_numbers:
        what, clause = changed(change, j), f"that are {clause}"
    elif change.phrase:
        clause += f", {change.phrase}"
    text = rng.choice(
        (
            f"Return a list of {what} in {argument} {clause}.",
            f"Return {what} in {argument} {clause}.",
            f"Given a list {argument}, return {what} {clause}.",
        )
    )
    draw: Callable[[random.Random], list[Any]] = some_numbers if is_numbers else some_words
    examples = [
        (repr(xs), [change.run(x, j) for x in xs if test.run(x, k)])
        for xs in (draw(rng) for _ in range(rng.randint(1, 2)))
    ]
    x, out = rng.choice(NUMBER_NAMES if is_numbers else names("word_names")), rng.choice(RESULTS)
    form = "filter"
    if rng.random() < 0.35:
        form = "filter_named" if rng.random() < 0.4 else "filter_short"
    lines = body(
        form, out=out, x=x, argument=argument, condition=test.over(x, k), value=change.over(x, j)
    )
    return code_dialogue(rng, f"{name}({argument}{hint}){returned}", text, examples, lines, imports)


def _number_total(rng: random.Random) -> Dialogue:
    """Write a function that filters numbers, changes them, and reduces them to one number."""
    test, change = rng.choice(NUMBER_TESTS), rng.choice(NUMBER_MAPS)
    k, j = rng.randint(2, 6), rng.randint(2, 9)
    how = rng.choice(("sum", "count", "largest", "product"))
    argument = rng.choice(NUMBER_ARGUMENTS)
    imports, hint, returned = type_hints(rng, "int", "int")
    if how == "count":
        change = NUMBER_MAPS[0]
    what = f"{changed(change, j)} in {argument} that are {test.text(k)}"
    text = {
        "sum": f"Return the sum of {what}.",
        "count": f"Count {what}.",
        "largest": f"Return the largest of {what}, or 0 if there are none.",
        "product": f"Return the product of {what}.",
    }[how]
    low, high, num = (-3, 6, 3) if how == "product" else (-9, 20, None)
    examples = [
        (repr(xs), _TOTALS[how]([change.run(x, j) for x in xs if test.run(x, k)]))
        for xs in (some_numbers(rng, num, low, high) for _ in range(rng.randint(1, 2)))
    ]
    x = rng.choice(NUMBER_NAMES)
    slots = {"x": x, "argument": argument, "condition": test.over(x, k), "value": change.over(x, j)}
    if how == "largest":
        slots["out"] = rng.choice(RESULTS[:2])
    lines = body(how, **slots) if how == "product" else either(rng, how, 0.4, **slots)
    name = joined("total" if how == "sum" else how, test.word, change.word)
    return code_dialogue(rng, f"{name}({argument}{hint}){returned}", text, examples, lines, imports)


def _word_count(rng: random.Random) -> Dialogue:
    """Write a function that filters the words of a text, and then counts or joins them."""
    test, k = rng.choice(WORD_TESTS), rng.randint(2, 6)
    argument = rng.choice(("text", "sentence", "line"))
    is_joined = rng.random() < 0.5
    draws = [some_words(rng) for _ in range(rng.randint(1, 2))]
    kept = [[word for word in words if test.run(word, k)] for words in draws]
    examples = [
        (repr(" ".join(words)), "-".join(of_draw) if is_joined else len(of_draw))
        for words, of_draw in zip(draws, kept, strict=True)
    ]
    what, slots = test.text(k), {"argument": argument, "condition": test.over("word", k)}
    if is_joined:
        name, text = "join", f"Join the words in {argument} {what} with a dash."
        form = "join_words" if rng.random() < 0.4 else "join_words_short"
        lines = body(form, **slots)
    else:
        name, text = "count", f"Count the words in {argument} {what}."
        lines = either(rng, "count_words", 0.4, **slots)
    hint, returned = rng.choice((("", ""), (": str", f" -> {'str' if is_joined else 'int'}")))
    signature = f"{name}_{test.word}_words({argument}{hint}){returned}"
    return code_dialogue(rng, signature, text, examples, lines)


def _pairs(rng: random.Random) -> Dialogue:
    """Write a function that takes two lists of numbers pair by pair."""
    operation = rng.choice(PAIR_OPERATIONS)
    left, right = rng.choice((("first", "second"), ("xs", "ys"), ("left", "right"), ("a", "b")))
    x, y = rng.choice((("x", "y"), ("p", "q"), ("u", "v")))
    test, k = rng.choice(NUMBER_TESTS[:6]), rng.randint(2, 6)
    is_filtered = rng.random() < 0.5
    num = rng.randint(2, 4)
    lefts, rights = some_numbers(rng, num, 0, 12), some_numbers(rng, num, 0, 12)
    values = [operation.run(p, q) for p, q in zip(lefts, rights, strict=True)]
    name = f"pairwise_{operation.word}"
    text = f"Return the {operation.word} of each pair of numbers from {left} and {right}"
    slots = {"x": x, "y": y, "left": left, "right": right, "value": operation.over(x, y)}
    if is_filtered:
        values = [value for value in values if test.run(value, k)]
        name += f"_{test.word}"
        text += f", keeping only those that are {test.text(k)}"
        lines = body("pairs_filtered", **slots, condition=test.over("value", k))
    else:
        lines = either(rng, "pairs", 0.5, **slots)
    examples = [(f"{lefts!r}, {rights!r}", values)]
    return code_dialogue(rng, f"{name}({left}, {right})", f"{text}.", examples, lines)


def _mapping(rng: random.Random) -> Dialogue:
    """Write a function that filters the entries of a dictionary by value."""
    argument = rng.choice(("scores", "prices", "ages", "stock", "counts"))
    test, k = rng.choice(NUMBER_TESTS[4:8]), rng.randint(2, 9)
    is_keys = rng.random() < 0.5
    given = {word: rng.randint(1, 12) for word in rng.sample(names("words"), rng.randint(2, 4))}
    kept = {key: value for key, value in given.items() if test.run(value, k)}
    name, text = f"filter_{test.word}_{argument}", f"Keep the entries of {argument}"
    if is_keys:
        name = f"{test.word}_{argument}_keys"
        text = f"Return the sorted keys of {argument}"
    examples = [(repr(given), sorted(kept) if is_keys else kept)]
    form = "keys" if is_keys else "entries"
    form = form if rng.random() < 0.5 else f"{form}_short"
    lines = body(form, argument=argument, condition=test.over("value", k))
    text += f" whose value is {test.text(k)}."
    return code_dialogue(rng, f"{name}({argument})", text, examples, lines)


def _digits(rng: random.Random) -> Dialogue:
    """Write a function that counts or adds up the digits of a number."""
    test, k = rng.choice(NUMBER_TESTS[:2] + NUMBER_TESTS[4:8]), rng.randint(2, 6)
    change = rng.choice(NUMBER_MAPS[:4])
    is_count = rng.random() < 0.4
    argument = rng.choice(("number", "n", "num"))
    values = [rng.randint(100, 99999) for _ in range(2)]
    kept = [[change.run(int(d), 0) for d in str(v) if test.run(int(d), k)] for v in values]
    examples = [
        (str(v), len(digits) if is_count else sum(digits))
        for v, digits in zip(values, kept, strict=True)
    ]
    what = f"{change.phrase} the digits" if change.phrase and not is_count else "the digits"
    verb = "Count" if is_count else "Return the sum of"
    text = f"{verb} {what} of {argument} that are {test.text(k)}."
    lines = body(
        "digits",
        argument=argument,
        total="count" if is_count else "total",
        added="1" if is_count else change.over("digit", 0),
        condition=test.over("digit", k),
    )
    name = f"{'count' if is_count else 'sum'}_{test.word}_digits"
    return code_dialogue(
        rng, f"{name}({argument}{rng.choice(('', ': int'))})", text, examples, lines
    )


def _up_to(rng: random.Random) -> Dialogue:
    """Write a function that collects or adds up numbers from 1 to n."""
    test = rng.choice(NUMBER_TESTS[:2] + NUMBER_TESTS[4:])
    change, k, j = rng.choice(NUMBER_MAPS), rng.randint(2, 5), rng.randint(2, 9)
    how = "sum" if rng.random() < 0.5 else "list"
    text = (
        f"Return {'the sum of' if how == 'sum' else 'a list of'} {changed(change, j)} from 1 to n "
        f"that are {test.text(k)}."
    )
    examples = []
    for n in rng.sample(range(3, 12), 2):
        kept = [change.run(x, j) for x in range(1, n + 1) if test.run(x, k)]
        examples.append((str(n), sum(kept) if how == "sum" else kept))
    lines = either(rng, f"up_to_{how}", 0.4, condition=test.over("i", k), value=change.over("i", j))
    name = joined(how, test.word, change.word, "up_to")
    return code_dialogue(rng, f"{name}(n{rng.choice(('', ': int'))})", text, examples, lines)


def _search(rng: random.Random) -> Dialogue:
    """Write a function that looks for the first, any or all numbers that meet a condition."""
    test, k = rng.choice(NUMBER_TESTS), rng.randint(2, 6)
    argument = rng.choice(NUMBER_ARGUMENTS)
    how = rng.choice(("first", "all", "any", "index"))
    what = test.text(k)
    first = f"the first number in {argument} that is {what}"
    text = {
        "first": f"Return {first}, or None if there is none.",
        "all": f"Return True if all numbers in {argument} are {what}.",
        "any": f"Return True if any number in {argument} is {what}.",
        "index": f"Return the index of {first}, or -1 if there is none.",
    }[how]
    examples = []
    for xs in (some_numbers(rng), some_numbers(rng)):
        hits = [i for i, x in enumerate(xs) if test.run(x, k)]
        value: Any = {
            "first": xs[hits[0]] if hits else None,
            "all": len(hits) == len(xs),
            "any": bool(hits),
            "index": hits[0] if hits else -1,
        }[how]
        examples.append((repr(xs), value))
    x = rng.choice(NUMBER_NAMES)
    slots = {"x": x, "argument": argument, "condition": test.over(x, k)}
    is_long = how in ("first", "index") or rng.random() < 0.5
    lines = body(how if is_long else f"{how}_short", **slots)
    name = joined(how, test.word, "number" if how == "first" else "")
    return code_dialogue(rng, f"{name}({argument})", text, examples, lines)
