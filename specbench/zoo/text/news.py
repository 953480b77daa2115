"""Family `cnn_dm`: an invented news article and a summary made from its facts."""

import random
from dataclasses import dataclass
from string import Formatter

from specbench.zoo.text.dialogue import Dialogue, Turn
from specbench.zoo.text.grammar import render, sentence
from specbench.zoo.text.lexicon import FIRST_NAMES, MONTHS, NUMBER_WORDS, SURNAMES, TOWNS, WEEKDAYS


@dataclass(frozen=True, slots=True)
class Event:
    """A kind of news: templates of its lead, its facts, its quotes and its two-part summary."""

    lead: str
    facts: tuple[str, ...]
    quotes: tuple[str, ...]
    summary: str


_EVENTS = (
    Event(
        "A [heavy|violent|sudden] storm [hit|struck] {town} on {day}, [damaging|tearing the "
        "roofs off] {n} houses and leaving {m} families without power.",
        (
            "[Strong|Fierce] winds of up to {k} miles per hour brought down trees [across the "
            "town|along the main road].",
            "Fire crews worked through the night to clear the [streets|roads].",
            "The {site} was turned into a shelter for [people who had to leave their homes|those "
            "who could not stay at home].",
            "No one was [seriously|badly] hurt, officials said.",
            "Repairs are expected to take about {w} weeks.",
            "Schools in {other} also stayed closed on the following day.",
        ),
        (
            "we have never seen anything like it",
            "the whole town is helping to clean up",
            "we were very lucky that nobody was hurt",
        ),
        "A storm [hit|struck] {town} on {day} and damaged {n} houses. {m} families lost power, "
        "and repairs will take about {w} weeks.",
    ),
    Event(
        "The town council of {town} [voted|decided] on {day} to [build|open] a new {site} for "
        "{money} dollars.",
        (
            "The [plan|project] was approved by {n} votes to {s}.",
            "Work will begin in {month} and should be finished within {w} months.",
            "The building will stand on the site of an old [factory|car park|brewery].",
            "Opponents [argued|complained] that the money should be spent on roads instead.",
            "About {m} residents came to the meeting.",
            "A similar project in {other} was finished last year.",
        ),
        (
            "this is a great day for our town",
            "our children have waited long enough for this",
            "it is an investment in the future",
        ),
        "{town} will get a new {site} for {money} dollars after a council vote on {day}. Work "
        "begins in {month} and [will|should] take {w} months.",
    ),
    Event(
        "[Workers|Builders|Students] digging near the {site} of {town} have [found|discovered|"
        "uncovered] {n} [ancient|very old] coins and a {object}.",
        (
            "The discovery was made on {day}, about {k} feet below the ground.",
            "Experts believe that the objects are more than {m} years old.",
            "They will be cleaned and shown in a museum in {other}.",
            "The work at the site has been stopped for {w} weeks.",
            "Hundreds of visitors have already come to see the place.",
            "It is not yet clear who buried the treasure.",
        ),
        (
            "I thought it was a piece of rubbish at first",
            "this changes what we know about the town",
            "I have waited for such a find all my life",
        ),
        "{n} old coins and a {object} have been found near the {site} of {town}. Experts believe "
        "that they are more than {m} years old.",
    ),
    Event(
        "[Thousands|Hundreds] of people [came to|gathered in] {town} on {day} for the [annual|"
        "yearly|famous] {fest} festival.",
        (
            "It was the biggest festival in {w} years, with {n} [bands|groups] and {k} food "
            "stalls.",
            "The festival raised {money} dollars for the {site}.",
            "The prize for the best [costume|cake|song] went to a team from {other}.",
            "The [rain|heat] did not keep the visitors away.",
            "Next year's festival will take place in {month}.",
            "Around {m} volunteers helped to organise the event.",
        ),
        (
            "the mood was simply wonderful",
            "people came from all over the region",
            "we are already planning the next one",
        ),
        "The {fest} festival in {town} drew large crowds on {day}. It raised {money} dollars for "
        "the {site}.",
    ),
    Event(
        "A {animal} that [escaped|ran away] from a [farm|zoo] near {town} was [caught|found] on "
        "{day} after {n} days.",
        (
            "The animal was first seen near the {site}, where it [frightened|surprised] a group "
            "of [walkers|children].",
            "About {m} people took part in the search.",
            "It was finally caught with the help of [a bucket of apples|a large net|some fresh "
            "bread].",
            "The animal is tired but healthy, a vet said.",
            "It had walked {k} miles, almost as far as {other}.",
            "The fence will be repaired within {w} weeks.",
        ),
        (
            "we are so happy to have it back",
            "it looked at us as if nothing had happened",
            "I could hardly believe my eyes",
        ),
        "A {animal} that escaped near {town} was caught on {day} after {n} days. It had walked "
        "{k} miles and was healthy.",
    ),
    Event(
        "{team} won the [regional|national] [cup|championship] on {day}, beating {other} {n} to "
        "{s}.",
        (
            "More than {m} fans watched the [match|game] in {town}.",
            "The deciding goal came in the last {w} minutes.",
            "It is the first title for the team in {k} years.",
            "The players celebrated at the {site} until late at night.",
            "The team will receive {money} dollars in prize money.",
            "The next season begins in {month}.",
        ),
        (
            "nobody believed in us, but we did it",
            "the team showed great spirit",
            "this is for our fans",
        ),
        "{team} beat {other} {n} to {s} on {day} to win the title. It is the team's first title "
        "in {k} years.",
    ),
    Event(
        "A company from {town} [announced|said] on {day} that it will [hire|take on] {m} new "
        "workers for its [factory|plant] near the {site}.",
        (
            "The company makes [bicycles|furniture|clocks|solar panels] and has grown quickly.",
            "It plans to invest {money} dollars over the next {w} years.",
            "The first jobs will be offered in {month}.",
            "The firm started {k} years ago with only {n} employees.",
            "A second plant is planned in {other}.",
            "The mayor welcomed the news.",
        ),
        (
            "we need good people, and we find them here",
            "this is the best news in years",
            "we want to grow together with the town",
        ),
        "A company in {town} will hire {m} new workers near the {site}. It plans to invest "
        "{money} dollars over {w} years.",
    ),
    Event(
        "{n} [hikers|climbers|students] were rescued on {day} from a mountain near {town} after "
        "they lost their way in [thick fog|heavy snow].",
        (
            "They had been missing for {k} hours.",
            "A rescue team of {m} people searched the area with dogs.",
            "One of them had [a broken leg|a hurt foot], the others were unharmed.",
            "They were taken to a hospital in {other}.",
            "The group had set out from the {site} without a map.",
            "It was the team's {w}th rescue this year.",
        ),
        (
            "we were cold, but we never gave up hope",
            "people must check the weather before they go",
            "we sang songs to stay awake",
        ),
        "{n} people were rescued from a mountain near {town} on {day}. They had been missing for "
        "{k} hours.",
    ),
)

_BACKGROUND = (
    "The town of {town} lies in a quiet valley and has about {k} thousand inhabitants.",
    "The news spread quickly among the people of {town}.",
    "Many people in {town} had talked about little else for days.",
    "The local radio station reported on the events all day long.",
    "The mayor of {other} also sent a message to the people of {town}.",
    "More details will be published in the coming days.",
    "A small group of people gathered at the {site} to hear the news.",
    "It was not the first time that {town} was in the news this year.",
)
_SITES = (
    "library",
    "swimming pool",
    "sports hall",
    "railway station",
    "town hall",
    "hospital",
    "theatre",
    "primary school",
    "old bridge",
    "market square",
)
_SPEAKERS = (
    "the mayor",
    "a spokesman",
    "a resident",
    "the organiser",
    "a witness",
    "a teacher",
    "an engineer",
    "the director",
)


def sample_news(rng: random.Random) -> Dialogue:
    """One article with its summary."""
    event = rng.choice(_EVENTS)
    town, other = rng.sample(TOWNS, 2)
    small = rng.randint(2, 5)
    slots: dict[str, object] = {
        "town": town,
        "other": other,
        "day": rng.choice(WEEKDAYS),
        "month": rng.choice(MONTHS),
        "site": rng.choice(_SITES),
        "n": NUMBER_WORDS[small + rng.randint(1, 7)],
        "s": NUMBER_WORDS[rng.randint(1, small)],
        "m": str(rng.randint(3, 95) * 10),
        "k": str(rng.randint(12, 75)),
        "w": str(rng.randint(6, 9)),
        "money": f"{rng.randint(2, 90) * 10},000",
        "object": rng.choice(
            ("silver cup", "bronze sword", "gold ring", "clay lamp", "stone mask")
        ),
        "fest": rng.choice(
            ("apple", "music", "kite", "lantern", "bread", "flower", "harvest", "jazz")
        ),
        "animal": rng.choice(("donkey", "goat", "llama", "pony", "sheep", "young bull", "parrot")),
        "team": f"{town} {rng.choice(('United', 'Rovers', 'Lions', 'City', 'Eagles'))}",
    }
    told = _slots(event.summary) - _slots(event.lead)
    needed = [text for text in event.facts if _slots(text) & told]
    rest = [text for text in event.facts if text not in needed]
    extras = rng.sample(rest, len(rest) - rng.randint(0, 1))
    facts = [*needed, *extras, *rng.sample(_BACKGROUND, rng.randint(2, 5))]
    rng.shuffle(facts)
    # Each fact once, so that the summary repeats the article's own wording.
    wording = {text: sentence(render(rng, text, **slots)) for text in facts}
    body = list(wording.values())
    quotes = rng.sample(event.quotes, 2)
    for place, quote in zip((rng.randint(1, 2), rng.randint(4, 6)), quotes, strict=True):
        body.insert(place, _quote(rng, quote, place > 2))
    lead = sentence(render(rng, event.lead, **slots))
    dateline = render(rng, "[{town}, {day} - |{town} ({day}) ||]", **slots)
    summary = sentence(render(rng, event.summary, **slots))
    summary = " ".join(
        [summary, *(wording[text] for text in rng.sample(extras, rng.randint(1, 2)))]
    )
    request = f"Summarize: {dateline}{' '.join([lead, *body])}"
    return Dialogue("cnn_dm", "summarization", (Turn(request, summary),))


def _slots(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name} - {"town", "day"}


def _quote(rng: random.Random, quote: str, is_second: bool) -> str:
    who = rng.choice(_SPEAKERS)
    if rng.random() < 0.6:
        who = f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}, {who}"
    said = rng.choice(("said", "explained", "added") if is_second else ("said", "explained"))
    return f'"{sentence(quote)}," {said} {who}.'
