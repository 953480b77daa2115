"""Topics of everyday talk, each with advice, benefits and drawbacks that fit it.

Tips are imperative clauses, benefits and drawbacks are clauses after "it". All may hold choices
in the template language.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """Something people do, and what can be said about it."""

    name: str
    tips: tuple[str, ...]
    benefits: tuple[str, ...]
    drawbacks: tuple[str, ...]


def _topic(name: str, tips: str, benefits: str, drawbacks: str) -> Topic:
    return Topic(name, *(tuple(part.split("; ")) for part in (tips, benefits, drawbacks)))


TOPICS = (
    _topic(
        "growing vegetables",
        "choose a spot with plenty of [sun|light]; water the plants early in the [morning|day]; "
        "start with easy plants such as [beans|peas] and lettuce; pull out the weeds every [few "
        "days|week]; "
        "mix some compost into the soil; keep a [small|simple] diary of what you plant",
        "gives you fresh food at home; gets you out into the [fresh air|open air]; saves [some|a "
        "little] money; "
        "teaches patience",
        "needs [regular|daily] care; depends on the weather; takes up [space|room]",
    ),
    _topic(
        "learning a language",
        "practise a little every day; listen to [songs|radio shows] in the language; "
        "write down new words in a [small|pocket] notebook; speak with [native speakers|other "
        "learners] often; "
        "read [easy|short] books first; do not be afraid of making mistakes",
        "opens the door to [new|other] cultures; keeps your [mind|memory] sharp; helps you when "
        "you travel; "
        "can improve your [career|job prospects]",
        "takes a long time; can be [tiring|frustrating] at first; is easy to forget without "
        "practice",
    ),
    _topic(
        "running",
        "begin with short and slow runs; wear [good|comfortable] shoes; drink enough water; "
        "warm up before you [start|set off]; rest at least one day a week; run with a friend",
        "makes your heart [stronger|healthier]; clears your head after [work|a long day]; costs "
        "[very little|almost nothing]; "
        "helps you sleep better",
        "can hurt your knees; is hard in [bad|cold] weather; takes [effort|will] at the start",
    ),
    _topic(
        "cooking at home",
        "read the whole recipe first; prepare all ingredients before you [start|begin]; taste "
        "the food as you go; "
        "keep your knives sharp; learn a few [simple|basic] dishes well; clean up while you cook",
        "is cheaper than eating out; lets you choose [fresh|healthy] ingredients; brings the "
        "family together; "
        "is a [fun|creative] hobby",
        "takes time after work; leaves dishes to wash; needs some planning",
    ),
    _topic(
        "playing the guitar",
        "learn a few simple chords first; play slowly and [clearly|carefully]; practise for ten "
        "minutes a day; "
        "tune the guitar before you play; play along with your favourite songs; give your "
        "fingers a rest",
        "is a great way to relax; lets you play with [friends|others]; trains your [ear|hands]; "
        "builds confidence",
        "makes your fingers sore at first; can annoy the neighbours; takes months to learn",
    ),
    _topic(
        "saving money",
        "write down everything you spend; set aside a [fixed|small] amount every month; cook at "
        "home more often; "
        "wait a day before you buy [expensive|big] things; cancel services you do not use; "
        "compare prices before you shop",
        "gives you peace of mind; prepares you for [emergencies|surprises]; lets you plan for "
        "[big|important] goals; "
        "reduces stress",
        "means giving up some treats; takes [discipline|patience]; can feel slow",
    ),
    _topic(
        "working from home",
        "keep a fixed [schedule|timetable]; set up a quiet [desk|corner]; take short breaks "
        "every hour; "
        "get dressed as if you were going out; call your [colleagues|team] regularly; turn off "
        "your phone while you work",
        "saves the time of travelling; gives you more [freedom|flexibility]; is good for [quiet|"
        "focused] work; "
        "leaves more time for the family",
        "can feel lonely; mixes work and free time; makes teamwork harder",
    ),
    _topic(
        "riding a bicycle to work",
        "check your brakes and tyres [often|every week]; always wear a helmet; plan a safe route; "
        "use [bright|strong] lights at night; leave a little earlier than you need to; carry a "
        "small repair kit",
        "keeps you fit; is good for the [environment|air]; saves money on fuel; avoids traffic "
        "jams",
        "is unpleasant in the rain; can be dangerous on busy roads; needs a [safe|dry] place to "
        "park",
    ),
    _topic(
        "taking photographs",
        "use the soft light of the [morning|evening]; move closer to your subject; keep the "
        "camera steady; "
        "look for simple backgrounds; take many pictures and keep the [best|best few]; learn "
        "what each setting does",
        "helps you notice small details; keeps [memories|happy moments] alive; is a good reason "
        "to [travel|explore]; "
        "lets you express yourself",
        "can be an expensive hobby; takes up a lot of storage; may distract you from the moment",
    ),
    _topic(
        "preparing for an exam",
        "make a [study plan|timetable]; study in short sessions; test yourself with [old|"
        "practice] questions; "
        "explain the ideas to a friend; sleep well the night before; start with the hardest "
        "[topic|chapter]",
        "makes you feel [calm|confident]; shows you what you do not know yet; leads to better "
        "grades; "
        "builds good habits",
        "leaves less time for friends; can be stressful; is often boring",
    ),
    _topic(
        "keeping a dog",
        "walk the dog at least twice a day; train with small treats; visit the vet [every year|"
        "regularly]; "
        "brush the coat every week; give it [clean|fresh] water; be patient and [kind|consistent]",
        "gives you a loyal friend; gets you moving every day; makes the home [safer|livelier]; "
        "teaches children responsibility",
        "costs money for food and the vet; needs attention [every day|all year]; makes holidays "
        "harder to plan",
    ),
    _topic(
        "camping",
        "check the weather [forecast|report] first; pack a warm sleeping bag; set up the tent "
        "before dark; "
        "store food in closed boxes; bring a [map|torch] and a first aid kit; leave the place as "
        "you found it",
        "brings you close to nature; is a cheap kind of holiday; lets you see the stars; gives "
        "you a break from screens",
        "can be cold and wet; means carrying [heavy|a lot of] gear; is not very comfortable",
    ),
    _topic(
        "speaking in public",
        "practise your talk out loud; know your [opening|first lines] by heart; look at the "
        "people in the room; "
        "speak slowly and pause; use [short|simple] notes; breathe deeply before you begin",
        "makes you more confident; helps others understand your [ideas|work]; is useful in many "
        "jobs; "
        "lets you meet new people",
        "makes many people nervous; needs a lot of preparation; can go wrong",
    ),
    _topic(
        "reading more books",
        "carry a book [with you|in your bag]; read ten pages before bed; join a [book club|"
        "library]; "
        "choose books you [truly|really] enjoy; put your phone in another room; set a small goal "
        "for each month",
        "makes your vocabulary larger; is a [quiet|cheap] way to relax; shows you the world "
        "through other eyes; "
        "improves your focus",
        "takes time; can strain your eyes; fills your shelves quickly",
    ),
    _topic(
        "sleeping better",
        "go to bed at the same time every night; keep the bedroom dark and [cool|quiet]; avoid "
        "coffee in the [afternoon|evening]; "
        "put away screens an hour before bed; take a warm bath; get some exercise during the day",
        "gives you more energy; improves your mood; strengthens your [memory|health]; helps you "
        "think clearly",
        "means going home earlier; requires [strict|new] habits; does not work overnight",
    ),
    _topic(
        "painting",
        "start with a light pencil sketch; mix your own colours; use large brushes for the [sky|"
        "background]; "
        "let each layer dry; study the work of painters you [like|admire]; paint a little every "
        "[day|weekend]",
        "calms the mind; lets you express feelings; trains your eye for colour; makes [lovely|"
        "personal] gifts",
        "can be messy; needs good light; uses up a lot of paint and paper",
    ),
    _topic(
        "recycling",
        "sort your waste into [separate|different] bins; rinse bottles and cans; fold boxes flat; "
        "bring your own bag to the shop; repair things before you throw them away; learn the "
        "rules of your [town|city]",
        "saves energy; keeps rubbish out of the [sea|forests]; reduces the need for new materials; "
        "sets a good example",
        "takes some space at home; is confusing at times; costs towns money",
    ),
    _topic(
        "making new friends",
        "join a club or a [class|team]; ask people about themselves; remember names; "
        "invite someone for a [coffee|walk]; listen more than you talk; stay in touch",
        "makes life happier; gives you support in hard times; brings new ideas; makes a new "
        "[town|place] feel like home",
        "takes courage; needs time; can lead to disappointment",
    ),
    _topic(
        "swimming",
        "learn to breathe out under water; take a few lessons; wear goggles; practise one stroke "
        "at a time; "
        "never swim alone in [open|deep] water; stretch your arms first",
        "trains the whole body; is gentle on the joints; cools you down in summer; is a skill "
        "that can save lives",
        "requires a pool or a lake; dries out your skin; can be [crowded|noisy]",
    ),
    _topic(
        "volunteering",
        "choose a cause you care about; start with a few hours a month; be on time; ask what "
        "help is needed most; "
        "bring a friend; tell others about the work",
        "helps people in need; teaches you new skills; makes you part of a [community|team]; "
        "feels rewarding",
        "takes up free time; can be [emotionally|physically] tiring; is not paid",
    ),
)
