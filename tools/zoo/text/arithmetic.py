"""Family `gsm8k`: word problems of two to four steps, solved step by step with the right answer.

Every step is written as `a op b = c`, so that an answer can be checked by computing it again.
"""

import random

from tools.zoo.text.dialogue import Dialogue, Turn
from tools.zoo.text.templates import Writer, load, records
from tools.zoo.text.words import FIRST_NAMES, WEEKDAYS

_TEXT = load("arithmetic")
_GOODS, _COUNTABLE, _CONTAINERS, _VEHICLES = (
    _TEXT[name].split() for name in ("goods", "countable", "containers", "vehicles")
)
_JOBS, _HABITS = _TEXT["jobs"].strip().splitlines(), records(_TEXT["habits"])


def sample_arithmetic(rng: random.Random) -> Dialogue:
    """Write one word problem with its solution."""
    problems = (_running, _boxes, _shopping, _earning, _journey, _compared, _shared, _weekly)
    problem = rng.choices(problems, (5, 3, 3, 2, 2, 3, 2, 2))[0]
    return Dialogue("gsm8k", "math", (problem(rng),))


def _solved(story: list[str], steps: list[str], result: int) -> Turn:
    """Return a turn. Its request is the story, and its answer the steps and the result."""
    return Turn(" ".join(story), "\n".join([*steps, f"#### {result}"]))


def _two_people(rng: random.Random, kind: str) -> Writer:
    """Return a writer about two people and their things."""
    name, friend = rng.sample(FIRST_NAMES, 2)
    return Writer(rng, _TEXT[kind], name=name, friend=friend, things=rng.choice(_COUNTABLE))


def _running(rng: random.Random) -> Turn:
    """Write about a quantity that grows and shrinks."""
    write = _two_people(rng, "running")
    (have,) = write.roll(have=(5, 40))
    story, steps = [write("start")], []
    for _ in range(rng.randint(2, 3)):
        event = rng.choice(("gain", "loss", "doubling", "gain", "loss"))
        if event == "loss" and have < 4:
            event = "gain"
        elif event == "doubling" and have > 40:
            event = "loss"
        if event == "gain":
            change = amount = rng.randint(2, 30)
        elif event == "loss":
            amount = rng.randint(1, have - 1)
            change = -amount
        else:
            change = amount = have
        write.put(have=have, amount=amount, new=have + change)
        story.append(write(event))
        steps.append(write(f"{event}_step"))
        have += change
    return _solved([*story, write("question")], steps, have)


def _boxes(rng: random.Random) -> Turn:
    """Write about containers of things, with some taken out or added."""
    write = _two_people(rng, "boxes")
    write.put(boxes=rng.choice(_CONTAINERS))
    num, per_box = write.roll(num=(2, 9), each=(3, 12))
    total = num * per_box
    write.put(total=total)
    steps, story = [write("start_step")], [write("start")]
    if rng.random() < 0.5:
        (extra,) = write.roll(extra=(2, 25))
        write.put(before=total, total=total + extra)
        total += extra
        story.append(write("more"))
        steps.append(write("more_step"))
    (gone,) = write.roll(gone=(2, total - 2))
    story.append(write("gone"))
    steps.append(write("gone_step", left=total - gone))
    return _solved([*story, write("question")], steps, total - gone)


def _compared(rng: random.Random) -> Turn:
    """Write about a person with more, fewer or several times as many things as another."""
    write = _two_people(rng, "compared")
    (have,) = write.roll(have=(4, 30))
    kind = rng.choice(("more", "fewer", "times"))
    least, most = {"more": (2, 25), "fewer": (1, have - 2), "times": (2, 4)}[kind]
    (k,) = write.roll(k=(least, most))
    other = {"more": have + k, "fewer": have - k, "times": have * k}[kind]
    times = {2: "twice", 3: "three times", 4: "four times"}.get(k)
    write.put(sign={"more": "+", "fewer": "-", "times": "*"}[kind], other=other, times=times)
    story = write("story", relation=write(kind))
    steps = [write("other_step"), write("sum_step", total=have + other)]
    return _solved([story], steps, have + other)


def _shared(rng: random.Random) -> Turn:
    """Write about things that are put together and shared equally."""
    write = _two_people(rng, "shared")
    people, share = write.roll(people=(2, 8), each=(3, 12))
    total = people * share
    (of_first,) = write.roll(mine=(2, total - 2))
    write.put(total=total, theirs=total - of_first)
    return _solved([write("story")], [write("sum_step"), write("share_step")], share)


def _shopping(rng: random.Random) -> Turn:
    """Write about prices, amounts and change."""
    write = Writer(rng, _TEXT["shopping"], name=rng.choice(FIRST_NAMES))
    goods, goods2 = (f"{noun}{_plural_ending(noun)}" for noun in rng.sample(_GOODS, 2))
    num, price, num2, price2 = write.roll(num=(2, 6), price=(2, 12), num2=(2, 6), price2=(2, 9))
    cost, cost2 = num * price, num2 * price2
    total = cost + cost2
    write.put(goods=goods, goods2=goods2, cost=cost, cost2=cost2, total=total)
    story = [write("story")]
    steps = [write("cost_step"), write("cost2_step"), write("sum_step")]
    if rng.random() >= 0.5:
        return _solved([*story, write("question")], steps, total)
    paid = (total // 10 + rng.randint(1, 3)) * 10
    write.put(paid=paid, change=paid - total)
    return _solved([*story, write("paid")], [*steps, write("paid_step")], paid - total)


def _plural_ending(noun: str) -> str:
    return "es" if noun.endswith("ch") else "s"


def _earning(rng: random.Random) -> Turn:
    """Write about work by the hour, and then about something that is bought or saved."""
    write = Writer(rng, _TEXT["earning"], name=rng.choice(FIRST_NAMES), job=rng.choice(_JOBS))
    rate, hours, days = write.roll(rate=(4, 12), hours=(2, 5), days=(2, 6))
    daily = rate * hours
    total = daily * days
    (spent,) = write.roll(spent=(2, min(total - 1, 60)))
    write.put(item=rng.choice(_GOODS), daily=daily, total=total, left=total - spent)
    story, steps = write("story"), [write(f"{part}_step") for part in ("day", "days", "spent")]
    return _solved([story], steps, total - spent)


def _journey(rng: random.Random) -> Turn:
    """Write about speeds, hours and distances."""
    write = Writer(rng, _TEXT["journey"], vehicle=rng.choice(_VEHICLES))
    speed, hours = rng.choice(range(10, 65, 5)), rng.randint(2, 5)
    speed2, hours2 = rng.choice(range(10, 65, 5)), rng.randint(2, 4)
    miles, miles2 = speed * hours, speed2 * hours2
    write.put(speed=speed, hours=hours, speed2=speed2, hours2=hours2)
    write.put(miles=miles, miles2=miles2, total=miles + miles2)
    story, steps = write("story"), [write(f"{part}_step") for part in ("first", "second", "sum")]
    return _solved([story, write("question")], steps, miles + miles2)


def _weekly(rng: random.Random) -> Turn:
    """Write about amounts on three days, which may be compared with a goal."""
    write = Writer(rng, _TEXT["weekly"], name=rng.choice(FIRST_NAMES))
    verb, things = rng.choice(_HABITS)
    x, y, z = (WEEKDAYS[day] for day in sorted(rng.sample(range(7), 3)))
    a, b, c = write.roll(a=(3, 35), b=(3, 35), c=(3, 35))
    total = a + b + c
    write.put(verb=verb, things=things, x=x, y=y, z=z, two=a + b, three=total)
    story = [write("story")]
    steps = [write("first_step"), write("second_step")]
    if rng.random() >= 0.5:
        return _solved([*story, write("question")], steps, total)
    goal = total + rng.randint(2, 30)
    write.put(goal=goal, missing=goal - total)
    return _solved([*story, write("goal")], [*steps, write("goal_step")], goal - total)
