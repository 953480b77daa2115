"""First turns of chats that tell or describe something invented."""

import random

from specbench.zoo.text.chat_opening import Opening, say
from specbench.zoo.text.dialogue import Turn
from specbench.zoo.text.grammar import article, render, sentence
from specbench.zoo.text.lexicon import ANIMALS, TOWNS

_TROUBLES = (
    (
        "lost [its|the] way in the [forest|fog]",
        "a [small|bright] light between the trees",
        "followed it home",
    ),
    (
        "wanted to see the [sea|mountains]",
        "an old [map|boat] under a bridge",
        "set off before sunrise",
    ),
    ("could not sleep at night", "a [quiet|sleepy] star above the hill", "counted its flashes"),
    (
        "was afraid of [the dark|the storm]",
        "a [warm|dry] cave nearby",
        "waited there until morning",
    ),
    ("had no food for the winter", "a garden full of [apples|nuts]", "asked politely for some"),
    ("found a [golden|strange] key", "a tiny door in the hill", "opened it carefully"),
    ("was always in a hurry", "a [slow|gentle] river", "learned to sit still beside it"),
)


def story_chat(rng: random.Random) -> Opening:
    """A very short story about an animal."""
    hero, helper = rng.sample(ANIMALS, 2)
    trouble, found, deed = (render(rng, text) for text in rng.choice(_TROUBLES))
    mood = rng.choice(("young", "small", "clever", "lonely", "curious", "brave", "old", "shy"))
    user = render(
        rng,
        "[Tell me|Write|Make up] a [short|very short|little] story about {h} who {t}.",
        h=article(f"{mood} {hero}"),
        t=trouble,
    )
    points = (
        f"{article(f'{mood} {hero}')} {trouble}",
        render(
            rng,
            "[one day|one evening|after a while] the {h} [met|came across] {x}",
            h=hero,
            x=article(render(rng, "[kind|wise|friendly|funny] ") + helper),
        ),
        render(rng, "the {x} [showed|pointed out to] the {h} {f}", x=helper, h=hero, f=found),
        render(rng, "the {h} [thanked the {x} and|smiled and] {d}", h=hero, x=helper, d=deed),
    )
    start = render(rng, "[Once upon a time,|Long ago,|Once,] ")
    end = render(
        rng,
        "[From then on they were friends.|They often laughed about it later.|And the {h} was "
        "never lonely again.|The {h} never forgot that day.|The two of them still tell the story "
        "today.]",
        h=hero,
    )
    answer = (
        start
        + points[0]
        + ". "
        + " ".join(sentence(point) + "." for point in points[1:])
        + " "
        + end
    )
    return Opening("writing", Turn(user, answer), f"the {hero}", points)


_SIGHTS = {
    "harbour": (
        "fishing boats rock [gently|slowly] on the water",
        "the air smells of salt and [fish|rope]",
        "gulls [cry|circle] above the [roofs|boats]",
        "an old man mends his nets",
    ),
    "market": (
        "farmers sell [bread|cheese] and fresh fruit",
        "people [talk|laugh] and bargain",
        "the smell of [coffee|spices] fills the air",
        "children run between the stalls",
    ),
    "forest": (
        "[tall|ancient] trees stand close together",
        "soft moss covers the ground",
        "a [narrow|winding] path leads to a stream",
        "birds sing high in the branches",
    ),
    "village": (
        "[stone|wooden] houses line the street",
        "smoke rises from the chimneys",
        "a [small|white] church stands on the hill",
        "neighbours chat over the fence",
    ),
    "station": (
        "trains arrive with a loud [hiss|whistle]",
        "travellers hurry with heavy bags",
        "a clock shows the [wrong|exact] time",
        "someone plays the [violin|flute] in the hall",
    ),
    "lake": (
        "the water is [calm|clear] like glass",
        "[ducks|swans] glide past the reeds",
        "a wooden boat is tied to the shore",
        "the hills are mirrored in the water",
    ),
    "library": (
        "[tall|dusty] shelves reach the ceiling",
        "readers sit [quietly|silently] at long tables",
        "the floor creaks under every step",
        "light falls through high windows",
    ),
}


def place_chat(rng: random.Random) -> Opening:
    """The description of a place."""
    place = rng.choice(tuple(_SIGHTS))
    town, season = rng.choice(TOWNS), rng.choice(("spring", "summer", "autumn", "winter"))
    points = say(rng, tuple(rng.sample(_SIGHTS[place], 3)))
    user = render(
        rng,
        "[Describe|Write a description of|Paint a picture in words of] the {p} of {t} in {s}.",
        p=place,
        t=town,
        s=season,
    )
    answer = render(
        rng,
        "[In {s}, the {p} of {t} is [full of life|a quiet place|at its best].|The {p} of {t} is "
        "[a special place|worth a visit] in {s}.] "
        "{x}[, and|, while] {y}. {z}. [You could stay there for hours.|It feels as if time stood "
        "still.|Nobody is in a hurry.|Visitors come back every year.]",
        s=season,
        p=place,
        t=town,
        x=sentence(points[0]),
        y=points[1],
        z=sentence(points[2]),
    )
    return Opening("writing", Turn(user, answer), f"the {place}", tuple(points))


_ROLES = (
    (
        "lighthouse keeper",
        (
            "I light the lamp every evening",
            "I watch the ships in the [storm|night]",
            "I write the weather into a thick book",
            "I talk to the gulls",
        ),
    ),
    (
        "baker",
        (
            "I get up at [three|four] in the morning",
            "I knead the dough by hand",
            "I know all my customers by name",
            "I burn my fingers now and then",
        ),
    ),
    (
        "ship's captain",
        (
            "I check the wind before breakfast",
            "I plan our route by the stars",
            "I keep the crew in good spirits",
            "I miss the [smell|green] of the land",
        ),
    ),
    (
        "space explorer",
        (
            "I float past the window every morning",
            "I collect samples of strange dust",
            "I send messages to Earth",
            "I count the [moons|stars] before I sleep",
        ),
    ),
    (
        "detective",
        (
            "I look for small clues",
            "I ask [many|quiet] questions",
            "I never trust the first answer",
            "I drink too much tea",
        ),
    ),
    (
        "teacher",
        (
            "I prepare my lessons early",
            "I answer [hundreds|dozens] of questions",
            "I read stories aloud",
            "I laugh with my pupils",
        ),
    ),
    (
        "gardener",
        (
            "I water the roses at dawn",
            "I cut the hedges straight",
            "I argue with the snails",
            "I enjoy the first flowers of spring",
        ),
    ),
    (
        "robot",
        (
            "I charge my batteries at night",
            "I clean every room twice",
            "I try to understand jokes",
            "I store each memory carefully",
        ),
    ),
)


def role_chat(rng: random.Random) -> Opening:
    """Someone tells about a working day."""
    role, clauses = rng.choice(_ROLES)
    points = say(rng, tuple(rng.sample(clauses, 3)))
    user = render(
        rng,
        "[Imagine you are|Pretend to be|Act as|Play the role of] {r}. [What is your day like?|"
        "Tell me about your work.|How do you spend your days?|Describe your life.]",
        r=article(role),
    )
    answer = render(
        rng,
        "[Ah, welcome!|Good day to you!|Well, where shall I start?|Let me tell you.] [As {r}, I "
        "never get bored.|The life of {r} is [not easy|wonderful].|Every day is different for "
        "{r}.] "
        "{x}. [Then|After that,|Later] {y}, and {z}. [It is hard work, but I love it.|I would "
        "not change it for anything.|Would you like to join me one day?|That is my life, and I "
        "am happy with it.]",
        r=article(role),
        x=sentence(points[0]),
        y=points[1],
        z=points[2],
    )
    return Opening("roleplay", Turn(user, answer), f"the life of {article(role)}", tuple(points))
