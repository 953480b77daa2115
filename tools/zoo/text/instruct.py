"""Family `alpaca`: short instructions of many kinds, with short answers."""

import random

from tools.zoo.text.dialogue import Dialogue, Turn
from tools.zoo.text.templates import Writer, article, listing, load, numbered, records, render
from tools.zoo.text.topics import TOPICS
from tools.zoo.text.words import FIRST_NAMES, NUMBER_WORDS, TOWNS

_TEXT = load("instruct")
_TABLES = _TEXT["tables"]
_VERBS, _UNITS, _DEFINITIONS = (records(_TABLES[x]) for x in ("verbs", "units", "definitions"))
_OPPOSITES, _SYNONYMS = (
    [group.split("-") for group in _TABLES[name].split()] for name in ("opposites", "synonyms")
)
_KINDS = {kind: text.split() for kind, text in _TEXT["kinds"].items()}
_LOWER_CASE_KINDS = [kind for kind in _KINDS if kind != "countries"]

Pair = tuple[str, str]
"""A request and its answer."""


def sample_instruction(rng: random.Random) -> Dialogue:
    """Write one instruction with its answer."""
    kinds = (
        _examples, _odd_one, _opposite, _synonym, _tense, _correct, _define, _tips, _reasons, _sort,
        _convert, _slogan, _classify, _question, _calculate, _review,
    )  # fmt: skip
    user, answer = rng.choice(kinds)(rng)
    user = user.replace("  ", " ")  # an empty choice leaves a gap
    if user.startswith("What"):
        user = user[:-1] + "?"
    if rng.random() < 0.4 and "\n" not in answer:
        answer += " " + rng.choice(_TEXT["closings"])
    return Dialogue("alpaca", "instruction", (Turn(user, answer),))


def _written(rng: random.Random, table: str, **slots: object) -> Pair:
    """Write the request and the answer of a table's templates."""
    write = Writer(rng, _TEXT[table], **slots)
    return write("request"), write("answer")


def _examples(rng: random.Random) -> Pair:
    kind = rng.choice(list(_KINDS))
    num = rng.randint(3, 5)
    items = rng.sample(_KINDS[kind], num)
    word = NUMBER_WORDS[num]
    write = Writer(rng, _TEXT["examples"], kind=kind, num=word, items=listing(items))
    return write("request"), numbered(items) if rng.random() < 0.5 else write("answer")


def _odd_one(rng: random.Random) -> Pair:
    kind, other = rng.sample(_LOWER_CASE_KINDS, 2)
    items = rng.sample([word for word in _KINDS[kind] if word not in _KINDS[other]], 3)
    odd = rng.choice([word for word in _KINDS[other] if word not in _KINDS[kind]])
    items.insert(rng.randrange(4), odd)
    return _written(rng, "odd_one", items=", ".join(items), odd=odd, kind=kind, other=other)


def _opposite(rng: random.Random) -> Pair:
    pair = list(rng.choice(_OPPOSITES))
    if pair[1] != "old":  # old is the opposite of two words, new and young
        rng.shuffle(pair)
    word, opposite = pair
    return _written(rng, "opposite", word=word, opposite=opposite)


def _synonym(rng: random.Random) -> Pair:
    word, *group = rng.choice(_SYNONYMS)
    rng.shuffle(group)
    write = Writer(rng, _TEXT["synonym"], word=word)
    return write("request"), write("answer", group=listing(group, rng.choice(("and", "or"))))


def _define(rng: random.Random) -> Pair:
    word, meaning, use = rng.choice(_DEFINITIONS)
    a_word = article(word)
    write = Writer(rng, _TEXT["define"], word=word, meaning=meaning, a_word=a_word)
    return write("request"), write("answer", use=render(rng, use))


def _sort(rng: random.Random) -> Pair:
    write = Writer(rng, _TEXT["sort"])
    if rng.random() < 0.5:
        numbers = rng.sample(range(1, 99), rng.randint(4, 5))
        is_down = rng.random() < 0.5
        order = "largest to smallest" if is_down else "smallest to largest"
        user = write("numbers", order=order, items=", ".join(map(str, numbers)))
        return user, ", ".join(map(str, sorted(numbers, reverse=is_down)))
    items = rng.sample(_KINDS[rng.choice(_LOWER_CASE_KINDS)], 4)
    return write("words", items=", ".join(items)), ", ".join(sorted(items))


def _tips(rng: random.Random) -> Pair:
    topic = rng.choice(TOPICS)
    num = rng.randint(2, 4)
    tips = [render(rng, tip) for tip in rng.sample(topic.tips, num)]
    write = Writer(rng, _TEXT["tips"], num=NUMBER_WORDS[num], topic=topic.name)
    return write("request"), numbered([f"{tip}." for tip in tips])


def _reasons(rng: random.Random) -> Pair:
    topic = rng.choice(TOPICS)
    is_good = rng.random() < 0.7
    clauses = rng.sample(topic.benefits if is_good else topic.drawbacks, 2)
    x, y = (render(rng, text) for text in clauses)
    words = ("advantages", "benefits") if is_good else ("disadvantages", "drawbacks")
    return _written(rng, "reasons", topic=topic.name, reasons=rng.choice(words), x=x, y=y)


def _convert(rng: random.Random) -> Pair:
    big, small, factor = rng.choice(_UNITS)
    num, singular = rng.randint(2, 12), "foot" if big == "feet" else big[:-1]
    slots = {"big": big, "small": small, "factor": factor, "one": singular}
    return _written(rng, "convert", **slots, num=num, result=num * int(factor))


def _slogan(rng: random.Random) -> Pair:
    shop, town = rng.choice(_TEXT["shops"]), rng.choice(TOWNS)
    return _written(rng, "slogan", shop=shop, town=town)


def _classify(rng: random.Random) -> Pair:
    word = "positive" if rng.random() < 0.5 else "negative"
    write = Writer(rng, _TEXT["classify"], word=word)
    review = write(word, thing=rng.choice(_TEXT["reviewed"]))
    adjective = review.split(" was ")[1].split(".")[0]
    return write("request", text=review), write("answer", text=review, found=adjective)


def _calculate(rng: random.Random) -> Pair:
    a, b = rng.randint(2, 60), rng.randint(2, 40)
    sign = rng.choice("+-*")
    if sign == "*":
        a, b = rng.randint(2, 12), rng.randint(2, 12)
    if sign == "-" and a < b:
        a, b = b, a
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return _written(rng, "calculate", a=a, sign=sign, b=b, result=result)


def _review(rng: random.Random) -> Pair:
    shop, town, name = rng.choice(_TEXT["shops"]), rng.choice(TOWNS), rng.choice(FIRST_NAMES)
    word = "positive" if rng.random() < 0.6 else "critical"
    write = Writer(rng, _TEXT["review"], word=word, shop=shop, town=town, name=name)
    return write("request"), write(word)


def _action(rng: random.Random) -> dict[str, str]:
    """Return slots for a sentence in which somebody does something somewhere."""
    base, past, progressive, objects = rng.choice(_VERBS)
    return {
        "base": base,
        "past": past,
        "progressive": progressive,
        "third": base[:-1] + "ies" if base.endswith("ry") else base + "s",
        "name": rng.choice(FIRST_NAMES),
        "thing": rng.choice(objects.split(", ")),
        "place": rng.choice(_TEXT["places"]),
    }


def _tense(rng: random.Random) -> Pair:
    action, forms = _action(rng), _TEXT["tense"]["forms"]
    source, target = rng.sample(list(forms), 2)
    if source in ("form of a question", "negative form"):
        source = "present tense" if target != "present tense" else "past tense"
    write = Writer(rng, _TEXT["tense"], target=target, text=forms[source].format(**action))
    return write("request"), write("lead") + forms[target].format(**action)


def _correct(rng: random.Random) -> Pair:
    action = _action(rng)
    name, base, past = action["name"], action["base"], action["past"]
    friend = rng.choice([other for other in FIRST_NAMES if other != name])
    mistake = rng.choice(_TEXT["correct"]["mistakes"])
    slots = {"friend": friend, "lower_name": name.lower(), "not_past": base, **action}
    if base == past:
        slots["not_past"] = "reads"
    wrong, right = (mistake[key].format(**slots) for key in ("wrong", "right"))
    user = Writer(rng, _TEXT["correct"])("request", text=wrong)
    return user, f"{right} {mistake['why']}" if rng.random() < 0.7 else right


def _question(rng: random.Random) -> Pair:
    return _written(rng, "question", **_action(rng))
