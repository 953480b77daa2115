"""Instructions about words: lists, opposites, synonyms and definitions."""

import random

from specbench.zoo.text.grammar import article, listing, render, sentence, words

_KINDS = {
    "fruits": words("apple banana cherry grape lemon mango orange peach pear plum"),
    "vegetables": words("bean cabbage carrot leek onion pea pepper potato spinach pumpkin"),
    "animals": words("bear cat dog elephant horse lion mouse rabbit tiger wolf"),
    "colours": words("black blue brown green grey orange pink purple red white yellow"),
    "musical instruments": words("cello drum flute guitar harp piano trumpet violin clarinet"),
    "pieces of furniture": words("armchair bed bookcase chair cupboard desk shelf sofa table"),
    "sports": words("basketball boxing cycling football golf hockey rowing skiing tennis"),
    "jobs": words("baker carpenter doctor farmer judge nurse pilot plumber teacher"),
    "vehicles": words("bicycle bus car ferry plane ship train tram truck"),
    "tools": words("drill file hammer ladder pliers saw screwdriver spade wrench"),
    "pieces of clothing": words("belt coat dress glove hat jacket scarf shirt sock"),
    "countries": words("Brazil Canada Egypt France India Japan Kenya Norway Peru Spain"),
}
_OPPOSITES = tuple(
    tuple(pair.split("-"))
    for pair in [
        "hot-cold",
        "big-small",
        "fast-slow",
        "happy-sad",
        "rich-poor",
        "loud-quiet",
        "early-late",
        "strong-weak",
        "light-dark",
        "clean-dirty",
        "easy-difficult",
        "full-empty",
        "hard-soft",
        "high-low",
        "long-short",
        "new-old",
        "open-closed",
        "young-old",
        "wet-dry",
        "brave-afraid",
        "kind-cruel",
        "thick-thin",
        "wide-narrow",
        "deep-shallow",
        "sharp-blunt",
    ]
)
_SYNONYMS = tuple(
    tuple(group.split("-"))
    for group in [
        "happy-glad-cheerful-joyful",
        "big-large-huge-great",
        "fast-quick-rapid-swift",
        "smart-clever-bright-wise",
        "beautiful-lovely-pretty-handsome",
        "tired-sleepy-weary-exhausted",
        "angry-furious-cross-annoyed",
        "brave-bold-fearless-courageous",
        "small-little-tiny-minute",
        "sad-unhappy-gloomy-sorrowful",
        "start-begin-commence-open",
        "strange-odd-unusual-weird",
        "quiet-silent-calm-still",
    ]
)
_DEFINITIONS = (
    (
        "library",
        "a place where people can read and borrow books",
        "My sister goes to the library [every week|after school]",
    ),
    (
        "island",
        "a piece of land with water all around it",
        "They spent the summer on a small island",
    ),
    (
        "bridge",
        "a structure that carries a road over a river or a valley",
        "The old bridge was closed for repairs",
    ),
    (
        "glacier",
        "a large mass of ice that moves slowly down a valley",
        "We walked along the edge of the glacier",
    ),
    (
        "habit",
        "something that a person does regularly, often without thinking",
        "Reading before bed is a good habit",
    ),
    ("neighbour", "a person who lives near you", "Our neighbour waters the plants for us"),
    (
        "recipe",
        "a set of instructions for preparing a dish",
        "This recipe needs only four ingredients",
    ),
    ("budget", "a plan of how much money can be spent", "The school has a small budget for trips"),
    (
        "volcano",
        "a mountain with an opening through which lava can escape",
        "The volcano has been quiet for years",
    ),
    (
        "calendar",
        "a table that shows the days and months of the year",
        "She marked the date in her calendar",
    ),
    ("compass", "a tool that shows which way is north", "The captain looked at the compass"),
    ("harvest", "the time when crops are gathered", "The harvest was good this year"),
    (
        "orchestra",
        "a large group of musicians who play together",
        "The orchestra plays in the park on Sunday",
    ),
    (
        "microscope",
        "an instrument that makes very small things visible",
        "We looked at a leaf under the microscope",
    ),
)


def examples_task(rng: random.Random) -> tuple[str, str]:
    """Examples of a kind of thing."""
    kind = rng.choice(tuple(_KINDS))
    num = rng.randint(3, 5)
    items = rng.sample(_KINDS[kind], num)
    word = ("three", "four", "five")[num - 3]
    user = render(
        rng, "[Name|List|Give me|Write down] {w} [different|] {k}.", w=word, k=kind
    ).replace("  ", " ")
    if rng.random() < 0.5:
        return user, "\n".join(f"{i}. {sentence(item)}" for i, item in enumerate(items, 1))
    return user, render(
        rng,
        "[{W} {k} are {i}.|Here are {w} {k}: {i}.|Some {k} are {i}.]",
        W=sentence(word),
        w=word,
        k=kind,
        i=listing(items),
    )


def odd_one_task(rng: random.Random) -> tuple[str, str]:
    """The word that does not belong to the others."""
    kind, other = rng.sample(tuple(_KINDS)[:11], 2)
    items = rng.sample([w for w in _KINDS[kind] if w not in _KINDS[other]], 3)
    odd = rng.choice([w for w in _KINDS[other] if w not in _KINDS[kind]])
    items.insert(rng.randrange(4), odd)
    user = render(
        rng,
        "[Find the odd one out|Which word does not belong in this list|Identify the word that "
        "does not fit]: {i}",
        i=", ".join(items),
    )
    return user, render(
        rng,
        "[The odd one out is {o}.|The word that does not [fit|belong] is {o}.] [The other words "
        "are {k}.|All the others are {k}, but {o} is one of the {p}.|{O} is one of the {p}, "
        "while the rest are {k}.]",
        o=odd,
        O=sentence(odd),
        k=kind,
        p=other,
    )


def opposite_task(rng: random.Random) -> tuple[str, str]:
    """The opposite of a word."""
    pair = list(rng.choice(_OPPOSITES))
    if pair[1] != "old":
        rng.shuffle(pair)
    word, opposite = pair
    user = render(
        rng,
        "[What is the opposite of|Give the antonym of|Find a word that means the opposite of] "
        "[the word|] '{w}'[ and use both words in a sentence|].",
        w=word,
    ).replace("  ", " ")
    if user.startswith("What"):
        user = user[:-1] + "?"
    return user, render(
        rng,
        "The opposite of '{w}' is '{o}'. [For example: One of them was {w}, but the other was "
        "{o}.|You can say: It was {w} at first, and later it was {o}.|Example: Some like it {w}, "
        "others like it {o}.]",
        w=word,
        o=opposite,
    )


def synonym_task(rng: random.Random) -> tuple[str, str]:
    """Words with the same meaning."""
    group = list(rng.choice(_SYNONYMS))
    word = group.pop(0)
    rng.shuffle(group)
    user = render(
        rng, "[Give me|List|Find|Suggest] [three|some] synonyms for [the word|] '{w}'.", w=word
    ).replace("  ", " ")
    return user, render(
        rng,
        "[Synonyms for '{w}' are|Some words similar to '{w}' are|Instead of '{w}' you can say|"
        "Words with the same meaning as '{w}' are] {g}.",
        w=word,
        g=listing(group, rng.choice(("and", "or"))),
    )


def define_task(rng: random.Random) -> tuple[str, str]:
    """The meaning of a word and an example."""
    word, meaning, use = rng.choice(_DEFINITIONS)
    user = render(
        rng,
        "[Define the word '{w}'.|What does the word '{w}' mean?|Explain [in simple words |]what "
        "{a} is.|Explain the meaning of '{w}'[ and give an example|].|Use the word '{w}' in a "
        "sentence and explain it.]",
        w=word,
        a=article(word),
    )
    return user, render(
        rng,
        "[{A} is {m}.|The word '{w}' means {m}.|We call {m} {a}.] [For example: '{u}.'|You can "
        "use it like this: '{u}.'|Here is an example: '{u}.']",
        A=sentence(article(word)),
        a=article(word),
        w=word,
        m=meaning,
        u=render(rng, use),
    )


def sort_task(rng: random.Random) -> tuple[str, str]:
    """Numbers or words put in order."""
    if rng.random() < 0.5:
        numbers = rng.sample(range(1, 99), rng.randint(4, 5))
        down = rng.random() < 0.5
        user = render(
            rng,
            "[Sort|Arrange|Order] these numbers from {o}: {n}",
            o="largest to smallest" if down else "smallest to largest",
            n=", ".join(map(str, numbers)),
        )
        return user, ", ".join(map(str, sorted(numbers, reverse=down)))
    items = rng.sample(_KINDS[rng.choice(tuple(_KINDS)[:11])], 4)
    user = render(
        rng, "[Sort|Arrange|Put] these words in alphabetical order: {i}", i=", ".join(items)
    )
    return user, ", ".join(sorted(items))
