"""Word problems about prices, wages, speeds and days."""

import random

from specbench.zoo.text.arithmetic_turn import solved
from specbench.zoo.text.dialogue import Turn
from specbench.zoo.text.grammar import render
from specbench.zoo.text.lexicon import FIRST_NAMES, WEEKDAYS

_GOODS = (
    ("notebook", "notebooks"),
    ("pen", "pens"),
    ("sandwich", "sandwiches"),
    ("ticket", "tickets"),
    ("cup", "cups"),
    ("shirt", "shirts"),
    ("plant", "plants"),
    ("puzzle", "puzzles"),
    ("hat", "hats"),
    ("lamp", "lamps"),
    ("ball", "balls"),
    ("cake", "cakes"),
)
_JOBS = (
    "washing cars",
    "walking dogs",
    "mowing lawns",
    "baking bread",
    "painting fences",
    "delivering papers",
)
_HABITS = (
    ("reads", "pages"),
    ("runs", "laps"),
    ("bakes", "rolls"),
    ("plants", "trees"),
    ("sells", "tickets"),
    ("solves", "puzzles"),
)
_VEHICLES = ("train", "bus", "car", "truck", "boat", "cyclist")


def shopping_problem(rng: random.Random) -> Turn:
    """Prices, amounts and change."""
    name = rng.choice(FIRST_NAMES)
    (_, ones), (_, twos) = rng.sample(_GOODS, 2)
    a, p, b, q = rng.randint(2, 6), rng.randint(2, 12), rng.randint(2, 6), rng.randint(2, 9)
    first, second = a * p, b * q
    total = first + second
    story = render(
        rng,
        "{n} buys {a} {o} for ${p} each and {b} {w} for ${q} each.",
        n=name,
        a=a,
        o=ones,
        p=p,
        b=b,
        w=twos,
        q=q,
    )
    steps = [
        render(rng, "The {o} cost {a} * {p} = {c} dollars.", o=ones, a=a, p=p, c=first),
        render(rng, "The {o} cost {a} * {p} = {c} dollars.", o=twos, a=b, p=q, c=second),
        render(
            rng,
            "[Together they cost|In total, {n} pays|That is] {x} + {y} = {c} dollars.",
            n=name,
            x=first,
            y=second,
            c=total,
        ),
    ]
    if rng.random() < 0.5:
        paid = (total // 10 + rng.randint(1, 3)) * 10
        story += render(
            rng, " {n} pays with ${d}. How much [change|money] does {n} get back?", n=name, d=paid
        )
        steps.append(
            render(
                rng,
                "{n} gets back {d} - {t} = {c} dollars.",
                n=name,
                d=paid,
                t=total,
                c=paid - total,
            )
        )
        return solved(story, steps, paid - total)
    story += render(rng, " How much does {n} [spend|pay] in total?", n=name)
    return solved(story, steps, total)


def earning_problem(rng: random.Random) -> Turn:
    """Work by the hour, then something is bought or saved."""
    name = rng.choice(FIRST_NAMES)
    job = rng.choice(_JOBS)
    rate, hours, days = rng.randint(4, 12), rng.randint(2, 5), rng.randint(2, 6)
    daily = rate * hours
    total = daily * days
    spent = rng.randint(2, min(total - 1, 60))
    item = rng.choice(_GOODS)[0]
    story = render(
        rng,
        "{n} earns ${r} an hour [by|for] {j}. {n} works {h} hours a day for {d} days and then "
        "spends ${s} on a {i}. How much money [is left|does {n} have left]?",
        n=name,
        r=rate,
        j=job,
        h=hours,
        d=days,
        s=spent,
        i=item,
    )
    steps = [
        render(
            rng,
            "[Each day|In one day] {n} earns {r} * {h} = {c} dollars.",
            n=name,
            r=rate,
            h=hours,
            c=daily,
        ),
        render(
            rng, "In {d} days {n} earns {x} * {d} = {c} dollars.", n=name, d=days, x=daily, c=total
        ),
        render(
            rng,
            "[After buying the {i},|After that,] {n} has {t} - {s} = {c} dollars left.",
            i=item,
            n=name,
            t=total,
            s=spent,
            c=total - spent,
        ),
    ]
    return solved(story, steps, total - spent)


def journey_problem(rng: random.Random) -> Turn:
    """Speeds, hours and distances."""
    vehicle = rng.choice(_VEHICLES)
    speed, hours = rng.choice(range(10, 65, 5)), rng.randint(2, 5)
    speed2, hours2 = rng.choice(range(10, 65, 5)), rng.randint(2, 4)
    one, two = speed * hours, speed2 * hours2
    story = render(
        rng,
        "A {v} travels at {s} miles per hour for {h} hours and then at {s2} miles per hour for "
        "{h2} hours. ",
        v=vehicle,
        s=speed,
        h=hours,
        s2=speed2,
        h2=hours2,
    )
    steps = [
        render(
            rng,
            "[In the first part|First,] the {v} travels {s} * {h} = {c} miles.",
            v=vehicle,
            s=speed,
            h=hours,
            c=one,
        ),
        render(
            rng,
            "[In the second part|Then] it travels {s} * {h} = {c} miles.",
            s=speed2,
            h=hours2,
            c=two,
        ),
        render(
            rng,
            "[In total, it travels|The whole distance is] {a} + {b} = {c} miles.",
            a=one,
            b=two,
            c=one + two,
        ),
    ]
    return solved(
        story
        + rng.choice(
            ("How far does it travel in total?", "How many miles does it travel altogether?")
        ),
        steps,
        one + two,
    )


def weekly_problem(rng: random.Random) -> Turn:
    """Amounts on three days, compared with a goal."""
    name = rng.choice(FIRST_NAMES)
    verb, thing = rng.choice(_HABITS)
    x, y, z = (WEEKDAYS[day] for day in sorted(rng.sample(range(7), 3)))
    a, b, c = (rng.randint(3, 35) for _ in range(3))
    two, three = a + b, a + b + c
    slots: dict[str, object] = {"n": name, "v": verb, "t": thing, "x": x, "y": y, "z": z}
    story = render(
        rng, "{n} {v} {a} {t} on {x}, {b} on {y} and {c} on {z}. ", a=a, b=b, c=c, **slots
    )
    first = "[On the first two days|By {y}] that is {a} + {b} = {c} {t}."
    second = "[With {z}|After {z}] it is {a} + {b} = {c} {t}."
    steps = [
        render(rng, first, a=a, b=b, c=two, **slots),
        render(rng, second, a=two, b=c, c=three, **slots),
    ]
    if rng.random() < 0.5:
        goal = three + rng.randint(2, 30)
        story += f"The goal is {goal} {thing}. How many {thing} are still missing?"
        missing = "[The missing number is|Still missing are] {g} - {a} = {c} {t}."
        steps.append(render(rng, missing, g=goal, a=three, c=goal - three, **slots))
        return solved(story, steps, goal - three)
    return solved(story + f"How many {thing} is that in total?", steps, three)
