"""Family `natural_questions`: short closed-book questions about simple true facts."""

import random
from dataclasses import dataclass

from specbench.zoo.text.dialogue import Dialogue, Turn
from specbench.zoo.text.grammar import render, sentence
from specbench.zoo.text.world import (
    ANIMALS,
    BOOKS,
    COUNTRIES,
    DISCOVERIES,
    ELEMENTS,
    INVENTIONS,
    ORDINALS,
    PLANETS,
    SINGLES,
)


@dataclass(frozen=True, slots=True)
class _Ask:
    """A kind of fact: how it is asked for, answered, and mentioned beside another one."""

    question: str
    answer: str
    more: str


# In the order of the table's columns.
_ABOUT_COUNTRIES = (
    _Ask(
        "[what is the capital of {n}|what is the capital city of {n}|which city is the capital of "
        "{n}|name the capital of {n}|{c} is the capital of which country]",
        "[The capital of {n} is {c}.|{c} is the capital of {n}.|The capital city of {n} is {c}.]",
        "[The capital is {c}.|Its capital is {c}.|Its capital city is called {c}.]",
    ),
    _Ask(
        "[on which continent is {n}|where is {n}|which continent does {n} belong to|what "
        "continent is {n} in]",
        "[{n} is in {c}.|{n} is a country in {c}.|{n} lies in {c}.|{n} belongs to {c}.]",
        "[It is a country in {c}.|The country lies in {c}.|It is in {c}.]",
    ),
    _Ask(
        "[what language do they speak in {n}|which language is spoken in {n}|what is the main "
        "language of {n}|what do people speak in {n}]",
        "[The main language of {n} is {c}.|Most people in {n} speak {c}.|In {n}, people mostly "
        "speak {c}.]",
        "[Most people there speak {c}.|The main language is {c}.|People there speak {c}.]",
    ),
    _Ask(
        "[what is the currency of {n}|which currency is used in {n}|what money do they use in "
        "{n}|how do people pay in {n}]",
        "[The currency of {n} is {c}.|People in {n} pay with {c}.|In {n}, the currency is {c}.]",
        "[People pay with {c}.|The currency is {c}.|Its currency is {c}.]",
    ),
)


def sample_fact(rng: random.Random) -> Dialogue:
    """One question with its answer."""
    make = rng.choices(
        (_country, _book, _invention, _discovery, _animal, _element, _planet, _single),
        (8, 3, 3, 1, 3, 3, 2, 4),
    )[0]
    question, answer = make(rng)
    question = (
        render(
            rng,
            "[||||Question: |Please tell me: |Quick question: |I would like to know: |Answer "
            "this: ]",
        )
        + question
    )
    if (
        not question.startswith(("Question", "Quick", "Please", "I would", "Answer"))
        or rng.random() < 0.5
    ):
        question = sentence(question)
    turn = Turn(question + rng.choice(("?", "?", "?", "")), answer)
    return Dialogue("natural_questions", "qa", (turn,))


def _country(rng: random.Random) -> tuple[str, str]:
    name, *facts = rng.choice(COUNTRIES)
    more = [
        render(rng, ask.more, c=fact) for ask, fact in zip(_ABOUT_COUNTRIES, facts, strict=True)
    ]
    kind = rng.choice(range(len(_ABOUT_COUNTRIES)))
    ask, fact = _ABOUT_COUNTRIES[kind], facts[kind]
    question = render(rng, ask.question, n=name, c=fact)
    answer = render(rng, ask.answer, n=name, c=fact)
    others = more[:kind] + more[kind + 1 :]
    return question, " ".join([answer, *rng.sample(others, rng.randint(1, 2))])


def _book(rng: random.Random) -> tuple[str, str]:
    title, author, country, kind = rng.choice(BOOKS)
    if rng.random() < 0.7:
        question = render(
            rng,
            "[who wrote {t}|who is the author of {t}|by whom was {t} written|who was the writer "
            "of {t}|which author wrote the {k} {t}]",
            t=title,
            k=kind,
        )
        answer = render(
            rng,
            "[{t} was written by {a}.|The author of {t} is {a}.|{a} wrote {t}.|The {k} {t} was "
            "written by {a}.]",
            t=title,
            a=author,
            k=kind,
        )
        more = render(
            rng,
            "[The writer came from {c}.|It is a famous {k} from {c}.|It is one of the best known "
            "works from {c}.|The author lived in {c}.]",
            c=country,
            k=kind,
        )
    else:
        question = render(
            rng,
            "[what kind of text is {t}|which country does {t} come from|where was the author of "
            "{t} from|is {t} a novel or a play]",
            t=title,
        )
        answer = render(
            rng,
            "[{t} is a {k} from {c}.|{t} is a famous {k} that comes from {c}.]",
            t=title,
            k=kind,
            c=country,
        )
        more = render(rng, "[It was written by {a}.|The author is {a}.|{a} wrote it.]", a=author)
    return question, f"{answer} {more}"


def _invention(rng: random.Random) -> tuple[str, str]:
    thing, person, year, use = rng.choice(INVENTIONS)
    question = render(
        rng,
        "[who invented {t}|who is the inventor of {t}|when was {t} invented|in which year was "
        "{t} invented|what is {t} good for and who invented it|by whom was {t} invented]",
        t=thing,
    )
    answer = sentence(
        render(
            rng,
            "[{t} was invented by {p} in {y}.|{p} invented {t} in {y}.|the inventor of {t} was "
            "{p}, in {y}.|in {y}, {p} invented {t}.]",
            t=thing,
            p=person,
            y=year,
        )
    )
    return question, answer + render(
        rng, " [It {u}.|This invention {u}.|As we know, it {u}.|Today it still {u}.]", u=use
    )


def _discovery(rng: random.Random) -> tuple[str, str]:
    thing, person, year = rng.choice(DISCOVERIES)
    verb = "were" if thing.endswith("s") and not thing.endswith("Uranus") else "was"
    question = render(
        rng,
        "[who discovered {t}|when {v} {t} discovered|by whom {v} {t} discovered|in what year did "
        "someone discover {t}]",
        t=thing,
        v=verb,
    )
    answer = sentence(
        render(
            rng,
            "[{t} {v} discovered by {p} in {y}.|{p} discovered {t} in {y}.|in {y}, {p} "
            "discovered {t}.] [It was an important discovery.|This changed science.|The "
            "discovery is still famous today.]",
            t=thing,
            p=person,
            y=year,
            v=verb,
        )
    )
    return question, answer


def _animal(rng: random.Random) -> tuple[str, str]:
    name, group, young, food, home = rng.choice(ANIMALS)
    a = f"an {name}" if name[0] in "aeo" else f"a {name}"
    kind = rng.choice(("young", "food", "home", "group"))
    texts = {
        "young": render(
            rng,
            "[A young {n} is called a {y}.|The young of {a} is called a {y}.]",
            n=name,
            y=young,
            a=a,
        ).replace("a owlet", "an owlet"),
        "food": render(
            rng,
            "[The {n} mostly eats {f}.|{A} eats mainly {f}.|Its main food is {f}.]",
            n=name,
            f=food,
            A=sentence(a),
        ),
        "home": render(
            rng, "[The {n} lives in {h}.|Its home is in {h}.|It is found in {h}.]", n=name, h=home
        ).replace("in farms", "on farms"),
        "group": render(
            rng, "[The {n} is a {g}.|{A} is a {g}.|It is a {g}.]", n=name, g=group, A=sentence(a)
        ).replace("a amphibian", "an amphibian"),
    }
    question = {
        "young": "[what is a baby {n} called|what do you call a young {n}|what is the young of "
        "{a} called]",
        "food": "[what does {a} eat|what is the main food of {a}|what do you feed {a}]",
        "home": "[where does the {n} live|where can you find {a} in the wild|where is the {n} "
        "found]",
        "group": "[what kind of animal is {a}|is {a} a mammal or a bird|what class of animals "
        "does the {n} belong to]",
    }[kind]
    others = [text for key, text in texts.items() if key != kind]
    return render(rng, question, n=name, a=a), " ".join(
        [texts[kind], *rng.sample(others, rng.randint(1, 2))]
    )


def _element(rng: random.Random) -> tuple[str, str]:
    name, symbol, number, remark = rng.choice(ELEMENTS)
    question = render(
        rng,
        "[what is the chemical symbol for {n}|what is the atomic number of {n}|which symbol does "
        "{n} have|what do you know about {n}|what is {n}|which element has the symbol {s}]",
        n=name,
        s=symbol,
    )
    answer = render(
        rng,
        "[{N} has the symbol {s} and the atomic number {k}.|The symbol for {n} is {s}, and its "
        "atomic number is {k}.|{N} is the element number {k}, with the symbol {s}.]",
        n=name,
        N=sentence(name),
        s=symbol,
        k=number,
    )
    return question, answer + render(rng, " [It is {r}.|{N} is {r}.]", N=sentence(name), r=remark)


def _planet(rng: random.Random) -> tuple[str, str]:
    place = rng.randrange(8)
    name, remark = PLANETS[place]
    question = render(
        rng,
        "[which is the {o} planet from the sun|what is special about {n}|what number is {n} from "
        "the sun|which planet comes {o} when you start at the sun|what is the position of {n} in "
        "the solar system]",
        n=name,
        o=ORDINALS[place],
    )
    answer = render(
        rng,
        "[{n} is the {o} planet from the sun.|The {o} planet from the sun is {n}.|Counting from "
        "the sun, {n} is the {o} planet.] It is {r}.",
        n=name,
        o=ORDINALS[place],
        r=remark,
    )
    if 0 < place < 7:
        answer += render(
            rng,
            " [It lies between {b} and {c}.|Its neighbours are {b} and {c}.|]",
            b=PLANETS[place - 1][0],
            c=PLANETS[place + 1][0],
        )
    return question, answer.strip()


def _single(rng: random.Random) -> tuple[str, str]:
    question, answer, more = rng.choice(SINGLES)
    lead = render(rng, "[|||As far as I know, |The answer is simple: ]")
    return question, f"{sentence(lead + answer)}. {more}."
