"""Family `cnn_dm`: an invented news article, and a summary that is made from its facts."""

import random
from string import Formatter

from tools.zoo.text.dialogue import Dialogue, Turn
from tools.zoo.text.templates import load, render, sentence
from tools.zoo.text.words import FIRST_NAMES, MONTHS, NUMBER_WORDS, SURNAMES, TOWNS, WEEKDAYS

_TEXT = load("news")


def sample_news(rng: random.Random) -> Dialogue:
    """Write one article with its summary."""
    event = rng.choice(_TEXT["event"])
    slots = _draw_slots(rng)
    summarized = _slots_of(event["summary"]) - _slots_of(event["lead"])
    needed = [text for text in event["facts"] if _slots_of(text) & summarized]
    rest = [text for text in event["facts"] if text not in needed]
    extras = rng.sample(rest, len(rest) - rng.randint(0, 1))
    facts = [*needed, *extras, *rng.sample(_TEXT["background"], rng.randint(2, 5))]
    rng.shuffle(facts)
    # Each fact is worded once, so that the summary repeats the article's words.
    wording = {text: sentence(render(rng, text, **slots)) for text in facts}
    body = list(wording.values())
    quotes = rng.sample(event["quotes"], 2)
    for place, quote in zip((rng.randint(1, 2), rng.randint(4, 6)), quotes, strict=True):
        body.insert(place, _quote(rng, quote, is_second=place > 2))
    lead = sentence(render(rng, event["lead"], **slots))
    dateline = render(rng, _TEXT["dateline"], **slots)
    summary = sentence(render(rng, event["summary"], **slots))
    repeated = [wording[text] for text in rng.sample(extras, rng.randint(1, 2))]
    request = f"Summarize: {dateline}{' '.join([lead, *body])}"
    return Dialogue("cnn_dm", "summarization", (Turn(request, " ".join([summary, *repeated])),))


def _draw_slots(rng: random.Random) -> dict[str, str]:
    town, other = rng.sample(TOWNS, 2)
    small = rng.randint(2, 5)
    return {
        "town": town,
        "other": other,
        "day": rng.choice(WEEKDAYS),
        "month": rng.choice(MONTHS),
        "site": rng.choice(_TEXT["sites"]),
        "number": NUMBER_WORDS[small + rng.randint(1, 7)],
        "small": NUMBER_WORDS[rng.randint(1, small)],
        "tens": str(rng.randint(3, 95) * 10),
        "dozens": str(rng.randint(12, 75)),
        "several": str(rng.randint(6, 9)),
        "money": f"{rng.randint(2, 90) * 10},000",
        "object": rng.choice(_TEXT["objects"]),
        "festival": rng.choice(_TEXT["festivals"]),
        "animal": rng.choice(_TEXT["animals"]),
        "team": f"{town} {rng.choice(_TEXT['teams'])}",
    }


def _slots_of(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name} - {"town", "day"}


def _quote(rng: random.Random, quote: str, *, is_second: bool) -> str:
    who = rng.choice(_TEXT["speakers"])
    if rng.random() < 0.6:
        who = f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}, {who}"
    said = rng.choice(("said", "explained", "added") if is_second else ("said", "explained"))
    return f'"{sentence(quote)}," {said} {who}.'
