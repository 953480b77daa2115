"""Names and word tables that several families share."""

from specbench.zoo.text.grammar import words

FIRST_NAMES = words(
    "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Maria Noah Olivia Paul Rosa Sam "
    "Tara Victor Wendy Adam Bella Carlos Diana Eric Fiona George Hannah Ivan Julia Kevin Laura "
    "Mark Nina Oscar Priya Ravi Sara Tom Uma Vera Will Yusuf Zoe Amir Lena Hugo Mei Kofi"
)

SURNAMES = words(
    "Alder Barrow Castell Dunmore Ellery Fenwick Garrow Hollis Ingham Jarrow Kestrel Lomond "
    "Marlow Norwood Oakden Penrose Quill Ravell Stanmore Tarrant Underhay Vance Wexley Yarrow"
)

_TOWN_STARTS = words(
    "Ash Bel Clear Dun East Fair Glen Har Kings Lake Mill North Oak Port Red Stone"
)
_TOWN_ENDS = words("bridge bury dale field ford ham haven mere port ton view wick")
TOWNS = tuple(
    start + end
    for i, start in enumerate(_TOWN_STARTS)
    for j, end in enumerate(_TOWN_ENDS)
    if start.lower() != end and (i + j) % 3 == 0
)

WEEKDAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words(
    "January February March April May June July August September October November December"
)

NUMBER_WORDS = words("zero one two three four five six seven eight nine ten eleven twelve")

ANIMALS = words("fox owl bear rabbit turtle crow mouse wolf deer otter hedgehog squirrel")
