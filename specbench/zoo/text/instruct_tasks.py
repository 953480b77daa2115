"""Instructions to write, judge or compute something short."""

import random

from specbench.zoo.text.grammar import render, sentence
from specbench.zoo.text.lexicon import FIRST_NAMES, TOWNS
from specbench.zoo.text.topics import TOPICS

_PRODUCTS = (
    "coffee shop",
    "bakery",
    "bookshop",
    "bicycle shop",
    "toy store",
    "flower shop",
    "gym",
    "hotel",
    "travel agency",
    "garden centre",
    "music school",
    "pizza restaurant",
)
_UNITS = (
    ("hours", "minutes", 60),
    ("weeks", "days", 7),
    ("metres", "centimetres", 100),
    ("days", "hours", 24),
    ("feet", "inches", 12),
    ("kilograms", "grams", 1000),
    ("minutes", "seconds", 60),
    ("dozens", "pieces", 12),
)


def tips_task(rng: random.Random) -> tuple[str, str]:
    """A numbered list of tips."""
    topic = rng.choice(TOPICS)
    num = rng.randint(2, 4)
    word = ("two", "three", "four")[num - 2]
    tips = [render(rng, tip) for tip in rng.sample(topic.tips, num)]
    user = render(
        rng,
        "[Give|Write|List|Provide] {n} [tips|pieces of advice|suggestions] for {t}.",
        n=word,
        t=topic.name,
    )
    return user, "\n".join(f"{i}. {sentence(tip)}." for i, tip in enumerate(tips, 1))


def reasons_task(rng: random.Random) -> tuple[str, str]:
    """Two benefits or drawbacks."""
    topic = rng.choice(TOPICS)
    good = rng.random() < 0.7
    two = [render(rng, text) for text in rng.sample(topic.benefits if good else topic.drawbacks, 2)]
    word = rng.choice(("advantages", "benefits") if good else ("disadvantages", "drawbacks"))
    user = render(rng, "[Describe|Explain|Name|What are] two {w} of {t}.", w=word, t=topic.name)
    if user.startswith("What"):
        user = user[:-1] + "?"
    return user, render(
        rng,
        "[{T} has [several|some] {w}.|There are two main {w} of {t}.] [First, it {x}. Second, it "
        "{y}.|It {x}, and it also {y}.|One is that it {x}. Another is that it {y}.]",
        T=sentence(topic.name),
        t=topic.name,
        w=word,
        x=two[0],
        y=two[1],
    )


def convert_task(rng: random.Random) -> tuple[str, str]:
    """An amount in another unit."""
    big, small, factor = rng.choice(_UNITS)
    num = rng.randint(2, 12)
    user = render(
        rng,
        "[How many {s} are {n} {b}?|Convert {n} {b} to {s}.|Express {n} {b} in {s}.]",
        s=small,
        n=num,
        b=big,
    )
    one = {"feet": "foot"}.get(big, big[:-1])
    return user, render(
        rng,
        "[{n} {b} are {r} {s}|{n} {b} equal {r} {s}], because one {o} has {f} {s}[ and {n} * {f} "
        "= {r}|].",
        n=num,
        b=big,
        r=num * factor,
        s=small,
        o=one,
        f=factor,
    )


def slogan_task(rng: random.Random) -> tuple[str, str]:
    """A slogan for a shop."""
    shop, town = rng.choice(_PRODUCTS), rng.choice(TOWNS)
    user = render(
        rng,
        "[Write|Create|Invent|Suggest] a [short|catchy|friendly] [slogan|advertisement] for a "
        "{s} in {t}.",
        s=shop,
        t=town,
    )
    return user, render(
        rng,
        "\"[Your {s} in {t}|The {s} with a heart|{t}'s favourite {s}|Welcome to the best {s} in "
        "{t}][: | - |! ][come in and smile|where every visit counts|quality you can trust|small "
        'prices and big hearts|made for you, every day|try it once, love it forever][.|!]"',
        s=shop,
        t=town,
    )


def classify_task(rng: random.Random) -> tuple[str, str]:
    """Whether a review is positive or negative."""
    good = rng.random() < 0.5
    thing = rng.choice(
        (
            "The food",
            "The film",
            "The hotel",
            "The service",
            "The book",
            "The concert",
            "My new phone",
            "The trip",
        )
    )
    text = render(
        rng,
        "{t} was [wonderful|excellent|a real pleasure|better than expected]. I [enjoyed it a lot|"
        "would recommend it to everyone|will come back]."
        if good
        else "{t} was [terrible|boring|a waste of money|a big disappointment]. I [did not enjoy "
        "it|want my money back|will never do this again].",
        t=thing,
    )
    user = render(
        rng,
        "[Is the following review positive or negative?|Classify this review as positive or "
        "negative.|Decide whether this text is positive or negative.] {t}",
        t=text,
    )
    word = "positive" if good else "negative"
    return user, render(
        rng,
        "[The review is {w}.|This is a {w} review.|{W}.] [The writer [says|writes] that it was "
        '{f}.|It says: "{t}"]',
        w=word,
        W=sentence(word),
        t=text,
        f=text.split(" was ")[1].split(".")[0],
    )


def sum_task(rng: random.Random) -> tuple[str, str]:
    """One calculation."""
    a, b = rng.randint(2, 60), rng.randint(2, 40)
    kind = rng.choice("+-*")
    if kind == "*":
        a, b = rng.randint(2, 12), rng.randint(2, 12)
    if kind == "-" and a < b:
        a, b = b, a
    result = {"+": a + b, "-": a - b, "*": a * b}[kind]
    user = render(rng, "[Calculate|What is|Work out|Compute] {a} {k} {b}.", a=a, k=kind, b=b)
    if user.startswith("What"):
        user = user[:-1] + "?"
    return user, render(
        rng, "[The result is|That is|The answer is] {a} {k} {b} = {r}.", a=a, k=kind, b=b, r=result
    )


def review_task(rng: random.Random) -> tuple[str, str]:
    """A short review of a shop."""
    shop, town, name = rng.choice(_PRODUCTS), rng.choice(TOWNS), rng.choice(FIRST_NAMES)
    good = rng.random() < 0.6
    user = render(
        rng,
        "Write a [short|brief] [{g}] review of a {s} in {t}.",
        g="positive" if good else "critical",
        s=shop,
        t=town,
    )
    if good:
        answer = (
            "[I visited the {s} in {t} last week, and|We went to the {s} in {t}, and|My "
            "friend {n} told me about the {s} in {t}, and] [I was very pleased|it was a "
            "lovely surprise]. The staff were [friendly|helpful|kind], and the prices were "
            "[fair|low]. [I will come back soon.|Five stars from me!|I can only recommend "
            "it.]"
        )
    else:
        answer = (
            "[I visited the {s} in {t} last week, but|We went to the {s} in {t}, but|My "
            "friend {n} told me about the {s} in {t}, but] [I was disappointed|it was not a "
            "good experience]. The staff were [rude|slow|tired], and the prices were [too "
            "high|not clear]. [I will not come back.|Two stars at most.|There is a lot to "
            "improve.]"
        )
    return user, render(rng, answer, s=shop, t=town, n=name)
