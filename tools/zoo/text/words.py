"""Word tables that several families share."""

from tools.zoo.text.templates import load

_TABLES = {name: text.split() for name, text in load("words").items()}

FIRST_NAMES, SURNAMES = _TABLES["first_names"], _TABLES["surnames"]
WEEKDAYS, MONTHS = _TABLES["weekdays"], _TABLES["months"]
NUMBER_WORDS, ANIMALS = _TABLES["number_words"], _TABLES["animals"]
TOWNS = [
    start + end
    for i, start in enumerate(_TABLES["town_starts"])
    for j, end in enumerate(_TABLES["town_ends"])
    if start.lower() != end and (i + j) % 3 == 0
]
