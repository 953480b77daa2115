"""Word problems about things that are counted, given away and shared."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from specbench.zoo.text.arithmetic_turn import solved
from specbench.zoo.text.dialogue import Turn
from specbench.zoo.text.grammar import render, words
from specbench.zoo.text.lexicon import FIRST_NAMES

_COUNTABLE = words(
    "apples marbles stickers books pencils cookies shells stamps coins cards flowers balloons "
    "oranges buttons beads eggs toys postcards candles cupcakes"
)
_CONTAINERS = words("boxes bags baskets jars packs shelves trays drawers")


def _two_names(rng: random.Random) -> list[str]:
    return rng.sample(FIRST_NAMES, 2)


def running_problem(rng: random.Random) -> Turn:
    """A quantity that grows and shrinks."""
    name, friend = _two_names(rng)
    thing = rng.choice(_COUNTABLE)
    have = rng.randint(5, 40)
    story = [render(rng, "{n} [has|starts with|owns] {h} {t}.", n=name, h=have, t=thing)]
    steps: list[str] = []
    for _ in range(rng.randint(2, 3)):
        event = _event(rng, have)
        amount, new = event.draw(rng, have)
        slots = {"n": name, "f": friend, "t": thing, "h": have, "a": amount, "c": new}
        story.append(render(rng, event.story, **slots))
        steps.append(render(rng, event.step, **slots))
        have = new
    question = render(
        rng, "How many {t} does {n} have [now|in the end|at the end]?", n=name, t=thing
    )
    return solved(" ".join([*story, question]), steps, have)


@dataclass(frozen=True, slots=True)
class _Event:
    """What happens to a quantity: how it is told, solved, and drawn as (amount, new quantity)."""

    story: str
    step: str
    draw: Callable[[random.Random, int], tuple[int, int]]


def _gained(rng: random.Random, have: int) -> tuple[int, int]:
    amount = rng.randint(2, 30)
    return amount, have + amount


def _lost(rng: random.Random, have: int) -> tuple[int, int]:
    amount = rng.randint(1, have - 1)
    return amount, have - amount


_GAIN = _Event(
    "[Then {n} buys|{n} finds|{f} gives {n}|Later, {n} gets|Then {n} collects] {a} more.",
    "[After that, {n} has|Now {n} has|That makes] {h} + {a} = {c} {t}.",
    _gained,
)
_LOSS = _Event(
    "[{n} gives {a} of them to {f}.|Then {n} loses {a} of them.|{n} sells {a} of them.|"
    "After that, {n} gives away {a}.]",
    "[{n} has|There are|This leaves] {h} - {a} = {c} {t} left.",
    _lost,
)
_DOUBLING = _Event(
    "[Then {n} doubles the collection.|{f} then gives {n} as many as {n} already has.]",
    "[Doubling gives|Twice that is|This becomes] {h} * 2 = {c} {t}.",
    lambda rng, have: (have, 2 * have),
)


def _event(rng: random.Random, have: int) -> _Event:
    event = rng.choice((_GAIN, _LOSS, _DOUBLING, _GAIN, _LOSS))
    if event is _LOSS and have < 4:
        return _GAIN
    if event is _DOUBLING and have > 40:
        return _LOSS
    return event


def boxes_problem(rng: random.Random) -> Turn:
    """Containers of things, with some taken out or added."""
    name, friend = _two_names(rng)
    thing, box = rng.choice(_COUNTABLE), rng.choice(_CONTAINERS)
    num, each = rng.randint(2, 9), rng.randint(3, 12)
    total = num * each
    slots: dict[str, object] = {"n": name, "f": friend, "t": thing, "b": box, "k": num, "e": each}
    steps = [
        render(
            rng,
            "[In the {b} there are|The {b} hold|{n} has] {k} * {e} = {c} {t}[ in total| in all|].",
            c=total,
            **slots,
        )
    ]
    story = [render(rng, "{n} has {k} {b} with {e} {t} [each|in each of them].", **slots)]
    if rng.random() < 0.5:
        extra = rng.randint(2, 25)
        slots |= {"x": extra, "a": total}
        total += extra
        story.append(
            render(rng, "[There are also {x} loose {t}.|{f} brings {x} more {t}.]", **slots)
        )
        steps.append(
            render(
                rng,
                "[Together with the other {x}|With {x} more], that is {a} + {x} = {c}.",
                c=total,
                **slots,
            )
        )
    gone = rng.randint(2, total - 2)
    slots |= {"g": gone, "a": total, "c": total - gone}
    story.append(
        render(
            rng,
            "[{n} gives {g} {t} to {f}.|{g} of the {t} are broken.|{f} takes {g} of them.]",
            **slots,
        )
    )
    steps.append(
        render(rng, "[That leaves|This leaves|So there are] {a} - {g} = {c} {t} left.", **slots)
    )
    return solved(" ".join([*story, f"How many {thing} are left?"]), steps, total - gone)


def compared_problem(rng: random.Random) -> Turn:
    """One person has more, fewer or several times as many as another."""
    name, friend = _two_names(rng)
    thing = rng.choice(_COUNTABLE)
    have = rng.randint(4, 30)
    kind = rng.choice(("more", "fewer", "times"))
    if kind == "more":
        k = rng.randint(2, 25)
        other, relation, step = have + k, f"{k} more {thing} than {name}", f"{have} + {k}"
    elif kind == "fewer":
        k = rng.randint(1, have - 2)
        other, relation, step = have - k, f"{k} fewer {thing} than {name}", f"{have} - {k}"
    else:
        k = rng.randint(2, 4)
        other, relation, step = (
            have * k,
            f"{('twice', 'three times', 'four times')[k - 2]} as many {thing} as {name}",
            f"{have} * {k}",
        )
    story = render(
        rng,
        "{n} has {h} {t}. {f} has {r}. [How many {t} do they have together?|How many {t} do {n} "
        "and {f} have in total?]",
        n=name,
        h=have,
        t=thing,
        f=friend,
        r=relation,
    )
    steps = [
        f"{friend} has {step} = {other} {thing}.",
        render(
            rng,
            "[Together they have|In total, they have] {a} + {b} = {c} {t}.",
            a=have,
            b=other,
            c=have + other,
            t=thing,
        ),
    ]
    return solved(story, steps, have + other)


def shared_problem(rng: random.Random) -> Turn:
    """Things are put together and shared equally."""
    name, friend = _two_names(rng)
    thing = rng.choice(_COUNTABLE)
    people, each = rng.randint(2, 8), rng.randint(3, 12)
    total = people * each
    mine = rng.randint(2, total - 2)
    story = render(
        rng,
        "{n} has {a} {t} and {f} has {b} {t}. They put them together and share them equally "
        "among {p} [children|friends|people]. How many {t} does each one get?",
        n=name,
        f=friend,
        a=mine,
        b=total - mine,
        t=thing,
        p=people,
    )
    steps = [
        render(
            rng,
            "[Together they have|There are] {a} + {b} = {c} {t}.",
            a=mine,
            b=total - mine,
            c=total,
            t=thing,
        ),
        render(
            rng,
            "[Each one gets|Shared equally, that is] {c} / {p} = {e} {t}.",
            c=total,
            p=people,
            e=each,
            t=thing,
        ),
    ]
    return solved(story, steps, each)
