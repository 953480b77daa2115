"""Family `mt_bench`: chats of two turns, in which the second request transforms the first answer.

A first answer is made of points, so that the follow-up can shorten, list or restate it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tools.zoo.text.dialogue import Dialogue, Turn
from tools.zoo.text.templates import Writer, article, listing, load, numbered, render, sentence
from tools.zoo.text.topics import TOPICS
from tools.zoo.text.words import ANIMALS, FIRST_NAMES, TOWNS, WEEKDAYS

_TEXT = load("chat")


@dataclass(frozen=True, slots=True)
class _Opening:
    """The first turn of a chat, with the points that a follow-up can use.

    `about` completes "the main points about ...". `points` are whole clauses without a full stop.
    """

    category: str
    turn: Turn
    about: str
    points: Sequence[str]


def sample_chat(rng: random.Random) -> Dialogue:
    """Write one chat of two turns."""
    kinds = (_advice, _opinion, _letter, _story, _place, _role, _plan)
    opening = rng.choices(kinds, (4, 3, 3, 3, 2, 2, 2))[0](rng)
    return Dialogue("mt_bench", opening.category, (opening.turn, _follow_up(rng, opening)))


def _sampled(rng: random.Random, clauses: Sequence[str], num: int) -> list[str]:
    """Draw `num` clauses, and make their choices."""
    return [render(rng, clause) for clause in rng.sample(clauses, num)]


def _advice(rng: random.Random) -> _Opening:
    topic = rng.choice(TOPICS)
    x, y, z = tips = _sampled(rng, topic.tips, 3)
    benefit = render(rng, rng.choice(topic.benefits))
    write = Writer(rng, _TEXT["advice"], topic=topic.name, x=x, y=y, z=z, benefit=benefit)
    turn = Turn(write("request"), f"{write('lead')} {write('body')} {write('close')}")
    return _Opening("advice", turn, topic.name, tips)


def _opinion(rng: random.Random) -> _Opening:
    topic = rng.choice(TOPICS)
    x, y = _sampled(rng, topic.benefits, 2)
    z = render(rng, rng.choice(topic.drawbacks))
    write = Writer(rng, _TEXT["opinion"], topic=topic.name, x=x, y=y, z=z)
    turn = Turn(write("request"), write("answer"))
    return _Opening("humanities", turn, topic.name, [f"it {text}" for text in (x, y, z)])


def _letter(rng: random.Random) -> _Opening:
    occasion = rng.choice(_TEXT["letter"]["occasions"])
    writer, friend = rng.sample(FIRST_NAMES, 2)
    slots = {"friend": friend, "day": rng.choice(WEEKDAYS)}
    points = [render(rng, text, **slots) for text in occasion["points"]]
    if rng.random() < 0.5:
        points.pop(rng.randrange(1, 4))
    templates = _TEXT["letter"]
    request = templates["request"].replace("{occasion}", occasion["reason"])
    write = Writer(rng, {**templates, "request": request}, writer=writer, **slots)
    user, hello, hope, bye = (write(part) for part in ("request", "hello", "hope", "bye"))
    text = " ".join(f"{sentence(point)}." for point in points)
    turn = Turn(user, f"{hello}\n\n{hope} {text}\n\n{bye}\n{writer}")
    return _Opening("writing", turn, occasion["about"], points)


def _plan(rng: random.Random) -> _Opening:
    town = rng.choice(TOWNS)
    x, y, z = points = _sampled(rng, _TEXT["plans"], 3)
    write = Writer(rng, _TEXT["plan"], town=town, x=x, y=y, z=z)
    turn = Turn(write("request", guests=write("guests")), write("answer"))
    return _Opening("planning", turn, f"the day in {town}", points)


def _story(rng: random.Random) -> _Opening:
    hero, helper = rng.sample(ANIMALS, 2)
    trouble, finding, deed = (render(rng, x) for x in rng.choice(_TEXT["story"]["troubles"]))
    a_mood_hero = article(f"{rng.choice(_TEXT['moods'])} {hero}")
    write = Writer(rng, _TEXT["story"], hero=hero, helper=helper, found=finding, deed=deed)
    user = write("request", a_mood_hero=a_mood_hero, trouble=trouble)
    a_helper = article(write("helper"))
    rest = [write("met", a_helper=a_helper), write("shown"), write("thanked")]
    first = f"{a_mood_hero} {trouble}"
    middle = " ".join(f"{sentence(point)}." for point in rest)
    turn = Turn(user, f"{write('start')} {first}. {middle} {write('end')}")
    return _Opening("writing", turn, f"the {hero}", [first, *rest])


def _place(rng: random.Random) -> _Opening:
    place = rng.choice(list(_TEXT["place"]["sights"]))
    town, season = rng.choice(TOWNS), rng.choice(("spring", "summer", "autumn", "winter"))
    x, y, z = points = _sampled(rng, _TEXT["place"]["sights"][place], 3)
    write = Writer(rng, _TEXT["place"], place=place, town=town, season=season, x=x, y=y, z=z)
    return _Opening("writing", Turn(write("request"), write("answer")), f"the {place}", points)


def _role(rng: random.Random) -> _Opening:
    name, clauses = rng.choice(list(_TEXT["role"]["points"].items()))
    role = article(name)
    x, y, z = points = _sampled(rng, clauses, 3)
    write = Writer(rng, _TEXT["role"], role=role, x=x, y=y, z=z)
    turn = Turn(write("request"), write("answer"))
    return _Opening("roleplay", turn, f"the life of {role}", points)


def _follow_up(rng: random.Random, opening: _Opening) -> Turn:
    """Write a request to transform the first answer, and the transformed answer."""
    points, about = opening.points, opening.about
    kind = rng.choice(
        ("shortened", "bullets", "numbers", "formal", "cheerful", "picked", "reversed")
    )
    write = Writer(rng, _TEXT[kind if kind in _TEXT else "listed"], about=about)
    sentences = [sentence(point) for point in points]
    match kind:
        case "bullets":
            user = write("request", form=write("bullets"))
            return Turn(user, "\n".join(f"- {text}" for text in sentences))
        case "numbers":
            return Turn(write("request", form="a numbered list"), numbered(points))
        case "picked":
            point = points[rng.randrange(len(points))]
            return Turn(write("request"), write("answer", point=point))
        case "reversed":
            user = write("request")
            text = " ".join(f"{point}." for point in reversed(sentences))
            return Turn(user, f"{write('title')}\n\n{text}")
        case "cheerful":
            return Turn(write("request"), write("answer", points="! ".join(sentences)))
        case _:
            return Turn(write("request"), write("answer", points=listing(points)))
