"""Functions over dictionaries, digits and ranges, and searches."""

import random
from typing import Any

from specbench.zoo.text.code_dialogue import code_dialogue, code_of, phrase_of, some_numbers
from specbench.zoo.text.code_parts import (
    NUMBER_ARGUMENTS,
    NUMBER_MAPS,
    NUMBER_TESTS,
    WORDS,
)
from specbench.zoo.text.dialogue import Dialogue


def mapping_function(rng: random.Random) -> Dialogue:
    """The entries of a dictionary, filtered by value."""
    argument = rng.choice(("scores", "prices", "ages", "stock", "counts"))
    test, k = rng.choice(NUMBER_TESTS[4:8]), rng.randint(2, 9)
    keys_only = rng.random() < 0.5
    draw = {word: rng.randint(1, 12) for word in rng.sample(WORDS, rng.randint(2, 4))}
    condition = code_of(test, "value", k)
    what = phrase_of(test, k)
    if keys_only:
        name, text = (
            f"{test.word}_{argument}_keys",
            f"Return the sorted keys of {argument} whose value is {what}.",
        )
        value: Any = sorted(key for key, v in draw.items() if test.run(v, k))
        body = [f"return sorted(key for key, value in {argument}.items() if {condition})"]
        if rng.random() < 0.5:
            body = [
                "keys = []",
                f"for key, value in {argument}.items():",
                f"    if {condition}:",
                "        keys.append(key)",
                "return sorted(keys)",
            ]
    else:
        name, text = (
            f"filter_{test.word}_{argument}",
            f"Keep the entries of {argument} whose value is {what}.",
        )
        value = {key: v for key, v in draw.items() if test.run(v, k)}
        body = [f"return {{key: value for key, value in {argument}.items() if {condition}}}"]
        if rng.random() < 0.5:
            body = [
                "result = {}",
                f"for key, value in {argument}.items():",
                f"    if {condition}:",
                "        result[key] = value",
                "return result",
            ]
    return code_dialogue(rng, f"{name}({argument})", text, [(repr(draw), value)], body)


def digits_function(rng: random.Random) -> Dialogue:
    """The digits of a number, counted or added up."""
    test, k = rng.choice(NUMBER_TESTS[:2] + NUMBER_TESTS[4:8]), rng.randint(2, 6)
    change = rng.choice(NUMBER_MAPS[:4])
    count = rng.random() < 0.4
    argument = rng.choice(("number", "n", "num"))
    values = [rng.randint(100, 99999) for _ in range(2)]
    kept = [[change.run(int(d), 0) for d in str(v) if test.run(int(d), k)] for v in values]
    examples = [(str(v), len(ds) if count else sum(ds)) for v, ds in zip(values, kept, strict=True)]
    what = f"{change.phrase} the digits" if change.phrase and not count else "the digits"
    text = (
        f"{'Count' if count else 'Return the sum of'} {what} of {argument} that are "
        f"{phrase_of(test, k)}."
    )
    name = f"{'count' if count else 'sum'}_{test.word}_digits"
    total = "count" if count else "total"
    added = "1" if count else code_of(change, "digit", 0)
    body = [
        f"{total} = 0",
        f"for char in str({argument}):",
        "    digit = int(char)",
        f"    if {code_of(test, 'digit', k)}:",
        f"        {total} += {added}",
        f"return {total}",
    ]
    return code_dialogue(
        rng, f"{name}({argument}{rng.choice(('', ': int'))})", text, examples, body
    )


def up_to_function(rng: random.Random) -> Dialogue:
    """The numbers from 1 to n, collected or added up."""
    test = rng.choice(NUMBER_TESTS[:2] + NUMBER_TESTS[4:])
    change, k, j = rng.choice(NUMBER_MAPS), rng.randint(2, 5), rng.randint(2, 9)
    total = rng.random() < 0.5
    what = f"{phrase_of(change, j)} the numbers" if change.phrase else "the numbers"
    text = (
        f"Return {'the sum of' if total else 'a list of'} {what} from 1 to n that are "
        f"{phrase_of(test, k)}."
    )
    examples = []
    for n in rng.sample(range(3, 12), 2):
        kept = [change.run(x, j) for x in range(1, n + 1) if test.run(x, k)]
        examples.append((str(n), sum(kept) if total else kept))
    condition, value = code_of(test, "i", k), code_of(change, "i", j)
    if rng.random() < 0.4:
        kept_code = f"{value} for i in range(1, n + 1) if {condition}"
        body = [f"return sum({kept_code})" if total else f"return [{kept_code}]"]
    else:
        start, add, out = (
            ("total = 0", f"total += {value}", "total")
            if total
            else ("result = []", f"result.append({value})", "result")
        )
        body = [
            start,
            "for i in range(1, n + 1):",
            f"    if {condition}:",
            f"        {add}",
            f"return {out}",
        ]
    name = "_".join(
        word for word in ("sum" if total else "list", test.word, change.word, "up_to") if word
    )
    return code_dialogue(rng, f"{name}(n{rng.choice(('', ': int'))})", text, examples, body)


def search_function(rng: random.Random) -> Dialogue:
    """The first, any or all numbers that meet a condition."""
    test, k = rng.choice(NUMBER_TESTS), rng.randint(2, 6)
    argument = rng.choice(NUMBER_ARGUMENTS)
    how = rng.choice(("first", "all", "any", "index"))
    what = phrase_of(test, k)
    first = f"the first number in {argument} that is {what}"
    text = {
        "first": f"Return {first}, or None if there is none.",
        "all": f"Return True if all numbers in {argument} are {what}.",
        "any": f"Return True if any number in {argument} is {what}.",
        "index": f"Return the index of {first}, or -1 if there is none.",
    }[how]
    examples: list[tuple[str, Any]] = []
    for xs in (some_numbers(rng), some_numbers(rng)):
        hits = [i for i, x in enumerate(xs) if test.run(x, k)]
        value: Any = {
            "first": xs[hits[0]] if hits else None,
            "all": len(hits) == len(xs),
            "any": bool(hits),
            "index": hits[0] if hits else -1,
        }[how]
        examples.append((repr(xs), value))
    x = rng.choice(("x", "n", "number", "value"))
    body = _search_body(rng, how, x, argument, code_of(test, x, k))
    name = f"{how}_{test.word}" + ("_number" if how == "first" else "")
    return code_dialogue(rng, f"{name}({argument})", text, examples, body)


def _search_body(rng: random.Random, how: str, x: str, argument: str, condition: str) -> list[str]:
    loop = f"for {x} in {argument}:"
    if how == "first":
        return [loop, f"    if {condition}:", f"        return {x}", "return None"]
    if how == "index":
        loop = f"for i, {x} in enumerate({argument}):"
        return [loop, f"    if {condition}:", "        return i", "return -1"]
    if rng.random() >= 0.5:
        return [f"return {how}({condition} for {x} in {argument})"]
    is_all = how == "all"
    decisive = f"not ({condition})" if is_all else condition
    return [loop, f"    if {decisive}:", f"        return {not is_all}", f"return {is_all}"]
