"""First turns of chats about advice, opinions, letters and plans."""

import random

from specbench.zoo.text.chat_opening import Opening, say
from specbench.zoo.text.dialogue import Turn
from specbench.zoo.text.grammar import render, sentence
from specbench.zoo.text.lexicon import FIRST_NAMES, TOWNS, WEEKDAYS
from specbench.zoo.text.topics import TOPICS


def advice_chat(rng: random.Random) -> Opening:
    """Advice on a topic."""
    topic = rng.choice(TOPICS)
    tips = say(rng, tuple(rng.sample(topic.tips, 3)))
    benefit = render(rng, rng.choice(topic.benefits))
    user = render(
        rng,
        "[I want to start {t}.|My friend is interested in {t}.|I am new to {t}.|I have trouble "
        "with {t}.] "
        "[What advice would you give?|Do you have any advice?|What should a beginner know?|Can "
        "you give me some tips?]",
        t=topic.name,
    )
    lead = render(
        rng,
        "[{T} is a great choice, because it {b}.|It is good that you ask about {t}: it {b}.|"
        "Many people enjoy {t}, since it {b}.]",
        T=sentence(topic.name),
        t=topic.name,
        b=benefit,
    )
    body = render(
        rng,
        "[First, {x}. [Then|Next], {y}. [Finally|Last of all], {z}.|You should {x} and {y}. It "
        "also helps to {z}.|"
        "To begin with, {x}. It is also important to {y}. [Above all|And remember], {z}.]",
        x=tips[0],
        y=tips[1],
        z=tips[2],
    )
    close = render(
        rng,
        "[Good luck!|Have fun!|You will see progress soon.|Take it one step at a time.|Enjoy it!]",
    )
    return Opening("advice", Turn(user, f"{lead} {body} {close}"), topic.name, tuple(tips))


def opinion_chat(rng: random.Random) -> Opening:
    """The good and bad sides of a topic."""
    topic = rng.choice(TOPICS)
    good = say(rng, tuple(rng.sample(topic.benefits, 2)))
    bad = render(rng, rng.choice(topic.drawbacks))
    user = render(
        rng,
        "[Is {t} worth it?|What are the pros and cons of {t}?|Do you think {t} is a good idea?|"
        "Explain the good and bad sides of {t}.|Write a short paragraph about {t}.]",
        t=topic.name,
    )
    answer = render(
        rng,
        "[{T} has clear advantages.|There is a lot to say for {t}.|I think {t} is worth it for "
        "most people.|"
        "{T} has two sides.] [It {x}, and it {y}.|For one thing, it {x}. It also {y}.|The main "
        "reason is that it {x}. "
        "In addition, it {y}.] [However|On the other hand|Still], it {z}. "
        "[In the end, it depends on what you want.|Overall, the good sides are stronger.|"
        "If you can accept that, give it a try.|So it is best to try it for a [week|month] and "
        "decide.]",
        T=sentence(topic.name),
        t=topic.name,
        x=good[0],
        y=good[1],
        z=bad,
    )
    points = tuple(f"it {text}" for text in (*good, bad))
    return Opening("humanities", Turn(user, answer), topic.name, points)


_OCCASIONS = (
    (
        "thanking {f} for [the birthday gift|the lovely dinner|help with the move]",
        "your kindness",
        (
            "I was [so|very] happy about it",
            "it made my [whole week|day] brighter",
            "I told [everyone|all my friends] about it",
            "I hope to return the favour soon",
        ),
    ),
    (
        "inviting {f} to a [party|picnic|dinner] on {d}",
        "the invitation",
        (
            "we start at [five|six|seven] o'clock on {d}",
            "there will be [music and games|plenty of food|cake and tea]",
            "you can bring a friend",
            "please tell me if you can come",
        ),
    ),
    (
        "telling {f} that the meeting on {d} is cancelled",
        "the cancelled meeting",
        (
            "the meeting on {d} will not take place",
            "[two|three] of us are ill this week",
            "I will suggest a new date soon",
            "please send me your notes until then",
        ),
    ),
    (
        "asking {f} to look after [the cat|the house|the plants] during the holidays",
        "the favour",
        (
            "we will be away [from {d} on|until {d}]",
            "it only takes [ten|fifteen] minutes a day",
            "the key is with our neighbour",
            "we would be very grateful",
        ),
    ),
    (
        "apologising to {f} for [missing the call|being late|forgetting the appointment]",
        "the apology",
        (
            "I am truly sorry about what happened on {d}",
            "I mixed up the [time|day]",
            "it will not happen again",
            "I would like to invite you for a coffee",
        ),
    ),
    (
        "congratulating {f} on [the new job|passing the exam|the new house]",
        "the good news",
        (
            "I was [thrilled|delighted] to hear the news",
            "you have worked [so|very] hard for it",
            "nobody deserves it more",
            "let us celebrate on {d}",
        ),
    ),
)


def letter_chat(rng: random.Random) -> Opening:
    """A short letter for an occasion."""
    occasion, about, clauses = rng.choice(_OCCASIONS)
    writer, friend = rng.sample(FIRST_NAMES, 2)
    slots = {"f": friend, "d": rng.choice(WEEKDAYS)}
    points = [render(rng, text, **slots) for text in clauses]
    if rng.random() < 0.5:
        points.pop(rng.randrange(1, 4))
    user = render(
        rng,
        f"[Write|Draft|Compose] a [short|friendly|brief] [letter|email|note|message] {occasion}. "
        f"[Sign it as {{w}}.|My name is {{w}}.]",
        w=writer,
        **slots,
    )
    hello = render(rng, "[Dear|Hello|Hi] {f},", **slots)
    hope = render(
        rng, "[I hope you are well.|How are you?|I hope this finds you well.|It has been a while.] "
    )
    bye = render(rng, "[Best wishes|Kind regards|Warm regards|Yours|All the best],")
    text = " ".join(sentence(point) + "." for point in points)
    return Opening(
        "writing", Turn(user, f"{hello}\n\n{hope}{text}\n\n{bye}\n{writer}"), about, tuple(points)
    )


_PLANS = (
    "visit the old town",
    "have breakfast at a café by the [river|square]",
    "take a boat tour",
    "see the [art|history] museum",
    "climb the tower for the view",
    "eat at a [small|local] restaurant",
    "walk through the botanical garden",
    "listen to a concert in the park",
    "shop at the [flower|book] market",
    "rent bicycles and ride along the coast",
)


def plan_chat(rng: random.Random) -> Opening:
    """A day in a town."""
    town = rng.choice(TOWNS)
    points = say(rng, tuple(rng.sample(_PLANS, 3)))
    who = render(rng, "[a family|two friends|a couple|a school class|one person]")
    user = render(rng, "[Plan|Suggest|Make a plan for] a day in {t} for {w}.", t=town, w=who)
    answer = render(
        rng,
        "[Here is a plan for a day in {t}.|A day in {t} is easy to fill.|This is what I would do "
        "in {t}.] In the morning, {x}. "
        "[In the afternoon|After lunch|Around noon], {y}. [In the evening|Before you leave|At "
        "the end of the day], {z}. "
        "[That leaves some time to rest.|Do not forget a camera.|Comfortable shoes are a good "
        "idea.|It is best to book ahead.]",
        t=town,
        x=points[0],
        y=points[1],
        z=points[2],
    )
    return Opening("planning", Turn(user, answer), f"the day in {town}", tuple(points))
