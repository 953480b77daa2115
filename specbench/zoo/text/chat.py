"""Family `mt_bench`: two-turn chats, where the second request transforms the first answer.

A first answer is made from points, so that the follow-up can shorten, list or restate it.
"""

import random

from specbench.zoo.text.chat_opening import Opening
from specbench.zoo.text.chat_tales import place_chat, role_chat, story_chat
from specbench.zoo.text.chat_talk import advice_chat, letter_chat, opinion_chat, plan_chat
from specbench.zoo.text.dialogue import Dialogue, Turn
from specbench.zoo.text.grammar import listing, render, sentence


def sample_chat(rng: random.Random) -> Dialogue:
    """One two-turn chat."""
    make = rng.choices(
        (advice_chat, opinion_chat, letter_chat, story_chat, place_chat, role_chat, plan_chat),
        (4, 3, 3, 3, 2, 2, 2),
    )[0]
    opening = make(rng)
    return Dialogue("mt_bench", opening.category, (opening.turn, _follow_up(rng, opening)))


def _follow_up(rng: random.Random, opening: Opening) -> Turn:
    """A request to transform the first answer, and the transformed answer."""
    make = rng.choice(
        (_shortened, _with_bullets, _with_numbers, _formal, _cheerful, _picked, _reversed)
    )
    return make(rng, opening)


def _shortened(rng: random.Random, opening: Opening) -> Turn:
    user = render(
        rng,
        "[Make it shorter.|Now say the same in one sentence.|Shorten your answer to one "
        "sentence.|Please sum that up.|Give me the short version.]",
    )
    points = listing(list(opening.points))
    return Turn(user, render(rng, "[In short|To sum up|Briefly], {p}.", p=points))


def _with_bullets(rng: random.Random, opening: Opening) -> Turn:
    how = render(rng, "[bullet points|a list]")
    return _listed(rng, opening, how, ["-"] * len(opening.points))


def _with_numbers(rng: random.Random, opening: Opening) -> Turn:
    marks = [f"{i}." for i in range(1, len(opening.points) + 1)]
    return _listed(rng, opening, "a numbered list", marks)


def _listed(rng: random.Random, opening: Opening, how: str, marks: list[str]) -> Turn:
    user = render(
        rng,
        "[Turn your answer into {h}.|Give me the main points as {h}.|Rewrite this as {h}.|"
        "List the main points about {a} as {h}.]",
        h=how,
        a=opening.about,
    )
    lines = [f"{mark} {sentence(p)}" for mark, p in zip(marks, opening.points, strict=True)]
    return Turn(user, "\n".join(lines))


def _formal(rng: random.Random, opening: Opening) -> Turn:
    user = render(
        rng,
        "[Rewrite it in a more formal tone.|Make it sound more formal.|Now write it for an "
        "official [report|notice].]",
    )
    answer = render(
        rng,
        "[It should be noted with regard to {a} that|With respect to {a}, we would like to "
        "point out that|Please be informed of the following about {a}:] {p}. [We thank you "
        "for your attention.|Further details are available on request.|We remain at your "
        "disposal for any questions.]",
        a=opening.about,
        p=listing(list(opening.points)),
    )
    return Turn(user, answer)


def _cheerful(rng: random.Random, opening: Opening) -> Turn:
    user = render(
        rng,
        "[Make it more cheerful.|Rewrite it in a happy tone.|Say it again with more "
        "enthusiasm.|Make it sound excited.]",
    )
    answer = render(
        rng,
        "[Wow, great news about {a}!|Guess what!|Hooray, here we go!|This is wonderful!] "
        "{p}! [Isn't that fantastic?|What could be better?|I can hardly wait!|How lovely "
        "is that?]",
        a=opening.about,
        p="! ".join(sentence(point) for point in opening.points),
    )
    return Turn(user, answer)


def _picked(rng: random.Random, opening: Opening) -> Turn:
    point = opening.points[rng.randrange(len(opening.points))]
    user = render(
        rng,
        "[Which of these points is the most important?|What matters most here?|If you could "
        "keep only one point, which would it be?|What is the key point?]",
    )
    answer = render(
        rng,
        "[The most important point is this|If I had to choose one, it would be this|What "
        "matters most is this]: {p}. [Everything else depends on it.|The rest is less "
        "important.|It makes the biggest difference.|Without it, the other points mean little.]",
        p=point,
    )
    return Turn(user, answer)


def _reversed(rng: random.Random, opening: Opening) -> Turn:
    user = render(
        rng,
        "[Give it a title and start with the last point.|Add a title and put the points in "
        "reverse order.|Now tell it backwards, with a title.]",
    )
    answer = render(
        rng,
        "[All about|A few words about|Notes on|The truth about] {a}\n\n{p}",
        a=opening.about,
        p=" ".join(f"{sentence(point)}." for point in reversed(opening.points)),
    )
    return Turn(user, answer)
