"""Functions that filter and change lists of numbers or words."""

import random
from collections.abc import Callable
from math import prod
from typing import Any

from specbench.zoo.text.code_dialogue import (
    code_dialogue,
    code_of,
    phrase_of,
    some_numbers,
    some_words,
    type_hints,
)
from specbench.zoo.text.code_parts import (
    NUMBER_ARGUMENTS,
    NUMBER_MAPS,
    NUMBER_TESTS,
    PAIR_OPERATIONS,
    RESULTS,
    WORD_ARGUMENTS,
    WORD_MAPS,
    WORD_TESTS,
    Part,
)
from specbench.zoo.text.dialogue import Dialogue


def _filtered(
    rng: random.Random,
    kind: str,
    tests: tuple[Part, ...],
    maps: tuple[Part, ...],
    draw: Callable[[random.Random], list[Any]],
) -> Dialogue:
    test, change = rng.choice(tests), rng.choice(maps)
    k, j = rng.randint(2, 6), rng.randint(2, 9)
    is_numbers = kind == "numbers"
    argument = rng.choice(NUMBER_ARGUMENTS if is_numbers else WORD_ARGUMENTS)
    element = "int" if is_numbers else "str"
    imports, hint, returned = type_hints(rng, element, f"list[{element}]")
    verb = rng.choice(("get", "select", "find", "collect", "keep"))
    name = "_".join(word for word in (verb, test.word, change.word, kind) if word)
    what, such = "the words", phrase_of(test, k)
    if is_numbers:
        what, such = _changed(change, j), f"that are {such}"
    elif change.phrase:
        such += f", {change.phrase}"
    text = rng.choice(
        (
            f"Return a list of {what} in {argument} {such}.",
            f"Return {what} in {argument} {such}.",
            f"Given a list {argument}, return {what} {such}.",
        )
    )
    examples = [
        (repr(xs), [change.run(x, j) for x in xs if test.run(x, k)])
        for xs in (draw(rng) for _ in range(rng.randint(1, 2)))
    ]
    x = rng.choice(("x", "n", "number", "value") if is_numbers else ("word", "w", "s", "item"))
    body = _filter_body(rng, x, argument, code_of(test, x, k), code_of(change, x, j))
    return code_dialogue(rng, f"{name}({argument}{hint}){returned}", text, examples, body, imports)


def _changed(change: Part, j: int) -> str:
    return f"{phrase_of(change, j)} the numbers" if change.phrase else "the numbers"


def _filter_body(
    rng: random.Random, x: str, argument: str, condition: str, value: str
) -> list[str]:
    out = rng.choice(RESULTS)
    comprehension = f"[{value} for {x} in {argument} if {condition}]"
    if rng.random() < 0.35:
        if rng.random() < 0.4:
            return [f"{out} = {comprehension}", f"return {out}"]
        return [f"return {comprehension}"]
    return [
        f"{out} = []",
        f"for {x} in {argument}:",
        f"    if {condition}:",
        f"        {out}.append({value})",
        f"return {out}",
    ]


def number_list_function(rng: random.Random) -> Dialogue:
    """Numbers filtered and changed."""
    return _filtered(rng, "numbers", NUMBER_TESTS, NUMBER_MAPS, some_numbers)


def word_list_function(rng: random.Random) -> Dialogue:
    """Words filtered and changed."""
    return _filtered(rng, "words", WORD_TESTS, WORD_MAPS, some_words)


def number_total_function(rng: random.Random) -> Dialogue:
    """Numbers filtered, changed and reduced to one number."""
    test, change = rng.choice(NUMBER_TESTS), rng.choice(NUMBER_MAPS)
    k, j = rng.randint(2, 6), rng.randint(2, 9)
    how = rng.choice(("sum", "count", "largest", "product"))
    argument = rng.choice(NUMBER_ARGUMENTS)
    imports, hint, returned = type_hints(rng, "int", "int")
    if how == "count":
        change = NUMBER_MAPS[0]
    what = f"{_changed(change, j)} in {argument} that are {phrase_of(test, k)}"
    text = {
        "sum": f"Return the sum of {what}.",
        "count": f"Count {what}.",
        "largest": f"Return the largest of {what}, or 0 if there are none.",
        "product": f"Return the product of {what}.",
    }[how]
    low, high, num = (-3, 6, 3) if how == "product" else (-9, 20, None)
    examples = [
        (repr(xs), _total(how, [change.run(x, j) for x in xs if test.run(x, k)]))
        for xs in (some_numbers(rng, num, low, high) for _ in range(rng.randint(1, 2)))
    ]
    x = rng.choice(("x", "n", "number", "value"))
    body = _total_body(rng, how, x, argument, code_of(test, x, k), code_of(change, x, j))
    first = {"sum": "total"}.get(how, how)
    name = "_".join(word for word in (first, test.word, change.word) if word)
    return code_dialogue(rng, f"{name}({argument}{hint}){returned}", text, examples, body, imports)


def _total(how: str, kept: list[int]) -> int:
    return {"sum": sum(kept), "count": len(kept), "product": prod(kept)}.get(
        how, max(kept, default=0)
    )


def _total_body(
    rng: random.Random, how: str, x: str, argument: str, condition: str, value: str
) -> list[str]:
    kept = f"{value} for {x} in {argument} if {condition}"
    loop = [f"for {x} in {argument}:", f"    if {condition}:"]
    if how == "sum":
        if rng.random() < 0.4:
            return [f"return sum({kept})"]
        return ["total = 0", *loop, f"        total += {value}", "return total"]
    if how == "count":
        if rng.random() < 0.4:
            return [f"return sum(1 for {x} in {argument} if {condition})"]
        return ["count = 0", *loop, "        count += 1", "return count"]
    if how == "largest":
        out = rng.choice(RESULTS[:2])
        if rng.random() < 0.4:
            return [f"return max(({kept}), default=0)"]
        return [f"{out} = [{kept}]", f"if not {out}:", "    return 0", f"return max({out})"]
    return ["product = 1", *loop, f"        product *= {value}", "return product"]


def word_count_function(rng: random.Random) -> Dialogue:
    """The words of a text, filtered and then counted or joined."""
    test, k = rng.choice(WORD_TESTS), rng.randint(2, 6)
    argument = rng.choice(("text", "sentence", "line"))
    join = rng.random() < 0.5
    name = f"{'join' if join else 'count'}_{test.word}_words"
    draws = [some_words(rng) for _ in range(rng.randint(1, 2))]
    kept = [[w for w in words if test.run(w, k)] for words in draws]
    values: list[Any] = (
        ["-".join(words) for words in kept] if join else [len(words) for words in kept]
    )
    examples = [(repr(" ".join(words)), value) for words, value in zip(draws, values, strict=True)]
    what = phrase_of(test, k)
    condition = code_of(test, "word", k)
    if join:
        text = f"Join the words in {argument} {what} with a dash."
        body = [
            f"words = [word for word in {argument}.split() if {condition}]",
            "return '-'.join(words)",
        ]
        if rng.random() < 0.4:
            body = [
                "words = []",
                f"for word in {argument}.split():",
                f"    if {condition}:",
                "        words.append(word)",
                "return '-'.join(words)",
            ]
    else:
        text = f"Count the words in {argument} {what}."
        body = [
            "count = 0",
            f"for word in {argument}.split():",
            f"    if {condition}:",
            "        count += 1",
            "return count",
        ]
        if rng.random() < 0.4:
            body = [f"return len([word for word in {argument}.split() if {condition}])"]
    hint, returned = rng.choice((("", ""), (": str", f" -> {'str' if join else 'int'}")))
    return code_dialogue(rng, f"{name}({argument}{hint}){returned}", text, examples, body)


def pairs_function(rng: random.Random) -> Dialogue:
    """Two lists of numbers, taken pair by pair."""
    word, code, run = rng.choice(PAIR_OPERATIONS)
    left, right = rng.choice((("first", "second"), ("xs", "ys"), ("left", "right"), ("a", "b")))
    x, y = rng.choice((("x", "y"), ("p", "q"), ("u", "v")))
    test, k = rng.choice(NUMBER_TESTS[:6]), rng.randint(2, 6)
    filtered = rng.random() < 0.5
    num = rng.randint(2, 4)
    one, two = some_numbers(rng, num, 0, 12), some_numbers(rng, num, 0, 12)
    value = [run(p, q) for p, q in zip(one, two, strict=True)]
    if filtered:
        value = [v for v in value if test.run(v, k)]
    text = f"Return the {word} of each pair of numbers from {left} and {right}"
    text += f", keeping only those that are {phrase_of(test, k)}." if filtered else "."
    expression = code.format(a=x, b=y)
    if filtered:
        body = [
            "result = []",
            f"for {x}, {y} in zip({left}, {right}):",
            f"    value = {expression}",
            f"    if {code_of(test, 'value', k)}:",
            "        result.append(value)",
            "return result",
        ]
    elif rng.random() < 0.5:
        body = [f"return [{expression} for {x}, {y} in zip({left}, {right})]"]
    else:
        body = [
            "result = []",
            f"for {x}, {y} in zip({left}, {right}):",
            f"    result.append({expression})",
            "return result",
        ]
    name = f"pairwise_{word}" + (f"_{test.word}" if filtered else "")
    return code_dialogue(
        rng, f"{name}({left}, {right})", text, [(f"{one!r}, {two!r}", value)], body
    )
