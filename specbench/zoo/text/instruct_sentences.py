"""Instructions about sentences: tenses, mistakes and questions."""

import random

from specbench.zoo.text.grammar import render
from specbench.zoo.text.lexicon import FIRST_NAMES

# base; past; progressive; objects
_VERBS = (
    ("bake", "baked", "baking", ("a cake", "some bread", "cookies")),
    ("write", "wrote", "writing", ("a letter", "a story", "the report")),
    ("read", "read", "reading", ("a book", "the newspaper", "a poem")),
    ("paint", "painted", "painting", ("the fence", "a picture", "the wall")),
    ("buy", "bought", "buying", ("a ticket", "new shoes", "flowers")),
    ("sing", "sang", "singing", ("a song", "an old tune")),
    ("repair", "repaired", "repairing", ("the car", "the roof", "a bicycle")),
    ("drink", "drank", "drinking", ("a cup of tea", "water", "juice")),
    ("find", "found", "finding", ("the key", "a coin", "the way")),
    ("draw", "drew", "drawing", ("a map", "a horse", "a house")),
    ("clean", "cleaned", "cleaning", ("the kitchen", "the windows", "the floor")),
    ("carry", "carried", "carrying", ("the bags", "a box", "the suitcase")),
)
_PLACES = (
    "in the garden",
    "at school",
    "after lunch",
    "at home",
    "in the park",
    "every evening",
    "with a friend",
    "on Sunday",
    "before dinner",
    "by the lake",
)


def _action(rng: random.Random) -> tuple[str, tuple[str, str, str], str, str]:
    base, past, progressive, objects = rng.choice(_VERBS)
    return (
        rng.choice(FIRST_NAMES),
        (base, past, progressive),
        rng.choice(objects),
        rng.choice(_PLACES),
    )


def _third(base: str) -> str:
    return base[:-1] + "ies" if base.endswith("ry") else base + "s"


def tense_task(rng: random.Random) -> tuple[str, str]:
    """A sentence put into another form."""
    name, (base, past, progressive), thing, place = _action(rng)
    forms = {
        "present tense": f"{name} {_third(base)} {thing} {place}.",
        "past tense": f"{name} {past} {thing} {place}.",
        "future tense": f"{name} will {base} {thing} {place}.",
        "form of a question": f"Will {name} {base} {thing} {place}?",
        "negative form": f"{name} does not {base} {thing} {place}.",
        "present progressive": f"{name} is {progressive} {thing} {place}.",
    }
    source, target = rng.sample(tuple(forms), 2)
    if source in ("form of a question", "negative form"):
        source = "present tense" if target != "present tense" else "past tense"
    user = render(
        rng,
        "[Rewrite|Put|Change] the [following|] sentence in[to|] the {t}: {s}",
        t=target,
        s=forms[source],
    ).replace("  ", " ")
    return user, rng.choice(("", "", "The sentence is: ", "Here it is: ")) + forms[target]


def correct_task(rng: random.Random) -> tuple[str, str]:
    """A sentence whose mistake is to be corrected."""
    name, (base, past, progressive), thing, place = _action(rng)
    friend = rng.choice([n for n in FIRST_NAMES if n != name])
    wrong, right, why = rng.choice(
        (
            (
                f"{name} and {friend} was {progressive} {thing} {place}.",
                f"{name} and {friend} were {progressive} {thing} {place}.",
                "Two people need the plural verb 'were'.",
            ),
            (
                f"{name} {base} {thing} {place} yesterday."
                if base != past
                else f"{name} reads {thing} {place} yesterday.",
                f"{name} {past} {thing} {place} yesterday.",
                "The word 'yesterday' needs the past tense.",
            ),
            (
                f"{name} don't {base} {thing} {place}.",
                f"{name} doesn't {base} {thing} {place}.",
                "With one person, use 'doesn't'.",
            ),
            (
                f"{name} have to {base} {thing} {place}.",
                f"{name} has to {base} {thing} {place}.",
                "With one person, use 'has'.",
            ),
            (
                f"{name.lower()} wants to {base} {thing} {place}",
                f"{name} wants to {base} {thing} {place}.",
                "A name starts with a capital letter, and a sentence ends with a full stop.",
            ),
        )
    )
    user = render(
        rng,
        "[Correct the [grammar|mistakes] in|Fix the error in|Find the mistake in] this sentence: "
        "{w}",
        w=wrong,
    )
    return user, right + (" " + why if rng.random() < 0.7 else "")


def question_task(rng: random.Random) -> tuple[str, str]:
    """A question about a sentence, with its answer."""
    name, (base, past, _), thing, place = _action(rng)
    user = render(
        rng,
        "[Write|Make up|Give me] a [short|simple] question about this sentence and answer it: "
        "{n} {p} {t} {w}.",
        n=name,
        p=past,
        t=thing,
        w=place,
    )
    return user, render(
        rng,
        "[Question: What did {n} {b}? Answer: {n} {p} {t}.|Question: Who {p} {t}? Answer: It was "
        "{n}.|Question: Did {n} {b} {t}? Answer: Yes, {n} {p} {t} {w}.]",
        n=name,
        b=base,
        p=past,
        t=thing,
        w=place,
    )
