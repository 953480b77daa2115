"""Family `natural_questions`: short closed-book questions about simple true facts."""

import random

from tools.zoo.text.dialogue import Dialogue, Turn
from tools.zoo.text.templates import Writer, article, load, records, render, sentence

_TEXT = load("facts")
_TABLES = {name: records(text) for name, text in _TEXT["tables"].items()}
_PLANETS, _ORDINALS = _TABLES["planets"], _TEXT["ordinals"].split()


def sample_fact(rng: random.Random) -> Dialogue:
    """Write one question with its answer."""
    kinds = (_country, _book, _invention, _discovery, _animal, _element, _planet, _single)
    question, answer = rng.choices(kinds, (8, 3, 3, 1, 3, 3, 2, 4))[0](rng)
    opening = render(rng, _TEXT["openings"])
    question = opening + question
    if not opening or rng.random() < 0.5:
        question = sentence(question)
    turn = Turn(question + rng.choice(("?", "?", "?", "")), answer)
    return Dialogue("natural_questions", "qa", (turn,))


def _country(rng: random.Random) -> tuple[str, str]:
    name, *facts = rng.choice(_TABLES["countries"])
    kinds = list(_TEXT["country"].values())
    writers = [
        Writer(rng, kind, name=name, fact=fact) for kind, fact in zip(kinds, facts, strict=True)
    ]
    more = [write("more") for write in writers]
    asked = rng.choice(range(len(kinds)))
    question, answer = writers[asked]("question"), writers[asked]("answer")
    others = more[:asked] + more[asked + 1 :]
    return question, " ".join([answer, *rng.sample(others, rng.randint(1, 2))])


def _book(rng: random.Random) -> tuple[str, str]:
    title, author, country, kind = rng.choice(_TABLES["books"])
    asked = "book" if rng.random() < 0.7 else "book_kind"
    write = Writer(rng, _TEXT[asked], title=title, author=author, country=country, kind=kind)
    return write("question"), f"{write('answer')} {write('more')}"


def _invention(rng: random.Random) -> tuple[str, str]:
    thing, person, year, use = rng.choice(_TABLES["inventions"])
    write = Writer(rng, _TEXT["invention"], thing=thing, person=person, year=year, use=use)
    return write("question"), f"{sentence(write('answer'))} {write('more')}"


def _discovery(rng: random.Random) -> tuple[str, str]:
    thing, person, year = rng.choice(_TABLES["discoveries"])
    was = "were" if thing.endswith("s") and not thing.endswith("Uranus") else "was"
    write = Writer(rng, _TEXT["discovery"], thing=thing, person=person, year=year, was=was)
    return write("question"), sentence(write("answer"))


def _animal(rng: random.Random) -> tuple[str, str]:
    name, group, young, food, home = rng.choice(_TABLES["animals"])
    asked = rng.choice(("young", "food", "home", "group"))
    slots = {
        "name": name, "a_name": article(name), "food": food,
        "a_young": article(young), "a_group": article(group),
        "in_home": f"{'on' if home.startswith('farms') else 'in'} {home}",
    }  # fmt: skip
    kinds = _TEXT["animal"]
    facts = {kind: render(rng, kinds[kind]["fact"], **slots) for kind in kinds}
    others = [fact for kind, fact in facts.items() if kind != asked]
    question = render(rng, kinds[asked]["question"], **slots)
    return question, " ".join([facts[asked], *rng.sample(others, rng.randint(1, 2))])


def _element(rng: random.Random) -> tuple[str, str]:
    name, symbol, number, remark = rng.choice(_TABLES["elements"])
    write = Writer(rng, _TEXT["element"], name=name, symbol=symbol, number=number, remark=remark)
    return write("question"), f"{write('answer')} {write('more')}"


def _planet(rng: random.Random) -> tuple[str, str]:
    place = rng.randrange(8)
    name, remark = _PLANETS[place]
    write = Writer(rng, _TEXT["planet"], name=name, remark=remark, ordinal=_ORDINALS[place])
    question, answer = write("question"), write("answer")
    if 0 < place < 7:
        (before, _), (after, _) = _PLANETS[place - 1], _PLANETS[place + 1]
        answer += write("neighbours", before=before, after=after)
    return question, answer


def _single(rng: random.Random) -> tuple[str, str]:
    question, answer, more = rng.choice(_TABLES["singles"])
    lead = render(rng, _TEXT["single"]["lead"])
    return question, f"{sentence(lead + answer)}. {more}."
