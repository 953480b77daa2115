"""Simple true facts as tables, one fact to a line, its fields apart by semicolons."""

from specbench.zoo.text.grammar import words


def _table(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.split("; ")) for line in text.strip().splitlines())


# name; capital; continent; language; currency
COUNTRIES = _table("""
France; Paris; Europe; French; the euro
Germany; Berlin; Europe; German; the euro
Italy; Rome; Europe; Italian; the euro
Spain; Madrid; Europe; Spanish; the euro
Portugal; Lisbon; Europe; Portuguese; the euro
Austria; Vienna; Europe; German; the euro
Greece; Athens; Europe; Greek; the euro
Poland; Warsaw; Europe; Polish; the zloty
Hungary; Budapest; Europe; Hungarian; the forint
Norway; Oslo; Europe; Norwegian; the krone
Sweden; Stockholm; Europe; Swedish; the krona
Denmark; Copenhagen; Europe; Danish; the krone
Finland; Helsinki; Europe; Finnish; the euro
Iceland; Reykjavik; Europe; Icelandic; the krona
Ireland; Dublin; Europe; English; the euro
Romania; Bucharest; Europe; Romanian; the leu
Ukraine; Kyiv; Europe; Ukrainian; the hryvnia
Japan; Tokyo; Asia; Japanese; the yen
China; Beijing; Asia; Mandarin; the yuan
India; New Delhi; Asia; Hindi; the rupee
Thailand; Bangkok; Asia; Thai; the baht
Vietnam; Hanoi; Asia; Vietnamese; the dong
South Korea; Seoul; Asia; Korean; the won
Nepal; Kathmandu; Asia; Nepali; the rupee
Mongolia; Ulaanbaatar; Asia; Mongolian; the tugrik
Iran; Tehran; Asia; Persian; the rial
Egypt; Cairo; Africa; Arabic; the pound
Morocco; Rabat; Africa; Arabic; the dirham
Kenya; Nairobi; Africa; Swahili; the shilling
Ethiopia; Addis Ababa; Africa; Amharic; the birr
Ghana; Accra; Africa; English; the cedi
Nigeria; Abuja; Africa; English; the naira
Mexico; Mexico City; North America; Spanish; the peso
Canada; Ottawa; North America; English; the dollar
Cuba; Havana; North America; Spanish; the peso
Brazil; Brasilia; South America; Portuguese; the real
Argentina; Buenos Aires; South America; Spanish; the peso
Chile; Santiago; South America; Spanish; the peso
Peru; Lima; South America; Spanish; the sol
Colombia; Bogota; South America; Spanish; the peso
Australia; Canberra; Oceania; English; the dollar
New Zealand; Wellington; Oceania; English; the dollar
""")
# title; author; country of the author; kind
BOOKS = _table("""
Hamlet; William Shakespeare; England; play
Romeo and Juliet; William Shakespeare; England; play
Pride and Prejudice; Jane Austen; England; novel
Oliver Twist; Charles Dickens; England; novel
Frankenstein; Mary Shelley; England; novel
Jane Eyre; Charlotte Bronte; England; novel
Treasure Island; Robert Louis Stevenson; Scotland; novel
Don Quixote; Miguel de Cervantes; Spain; novel
War and Peace; Leo Tolstoy; Russia; novel
Crime and Punishment; Fyodor Dostoevsky; Russia; novel
Faust; Johann Wolfgang von Goethe; Germany; play
Les Miserables; Victor Hugo; France; novel
The Divine Comedy; Dante Alighieri; Italy; poem
The Odyssey; Homer; Greece; poem
Moby-Dick; Herman Melville; the United States; novel
Little Women; Louisa May Alcott; the United States; novel
Dracula; Bram Stoker; Ireland; novel
The Little Mermaid; Hans Christian Andersen; Denmark; story
Around the World in Eighty Days; Jules Verne; France; novel
A Doll's House; Henrik Ibsen; Norway; play
""")
# thing; person; year; what the thing is good for
INVENTIONS = _table("""
the telephone; Alexander Graham Bell; 1876; lets people talk over long distances
dynamite; Alfred Nobel; 1867; is used to break rock
the phonograph; Thomas Edison; 1877; records and plays sound
the mercury thermometer; Daniel Fahrenheit; 1714; measures temperature
the electric battery; Alessandro Volta; 1800; stores electric energy
the lightning rod; Benjamin Franklin; 1752; protects buildings in storms
the steam locomotive; Richard Trevithick; 1804; pulls trains along rails
the diesel engine; Rudolf Diesel; 1893; drives ships and trucks
the World Wide Web; Tim Berners-Lee; 1989; links pages all over the world
the barometer; Evangelista Torricelli; 1643; measures the pressure of the air
the stethoscope; Rene Laennec; 1816; lets doctors listen to the heart
the pendulum clock; Christiaan Huygens; 1656; keeps accurate time
""")
# discovery; person; year
DISCOVERIES = _table("""
penicillin; Alexander Fleming; 1928
X-rays; Wilhelm Roentgen; 1895
radium; Marie and Pierre Curie; 1898
the planet Uranus; William Herschel; 1781
the electron; J. J. Thomson; 1897
the four largest moons of Jupiter; Galileo Galilei; 1610
""")
# name; class; young; food; where it lives
ANIMALS = _table("""
lion; mammal; cub; meat; the grasslands of Africa
giant panda; mammal; cub; bamboo; the mountains of China
kangaroo; mammal; joey; grass; Australia
koala; mammal; joey; eucalyptus leaves; Australia
polar bear; mammal; cub; seals; the Arctic
emperor penguin; bird; chick; fish; Antarctica
blue whale; mammal; calf; krill; the oceans
giraffe; mammal; calf; leaves; the savannas of Africa
elephant; mammal; calf; plants; Africa and Asia
sheep; mammal; lamb; grass; farms all over the world
goose; bird; gosling; grass; lakes and wetlands
frog; amphibian; tadpole; insects; ponds and wet places
swan; bird; cygnet; water plants; lakes and rivers
horse; mammal; foal; grass and hay; farms and grasslands
tiger; mammal; cub; meat; the forests of Asia
owl; bird; owlet; mice; forests and fields
""")
# element; symbol; atomic number; remark
ELEMENTS = _table("""
hydrogen; H; 1; the lightest element
helium; He; 2; a gas that is used in balloons
carbon; C; 6; found in all living things
nitrogen; N; 7; the main part of the air
oxygen; O; 8; the gas that we need to breathe
sodium; Na; 11; a part of table salt
iron; Fe; 26; a metal that rusts in wet air
copper; Cu; 29; a metal that conducts electricity well
silver; Ag; 47; a shiny metal used for jewellery
tin; Sn; 50; a soft metal used for cans
gold; Au; 79; a yellow metal that does not rust
mercury; Hg; 80; a metal that is liquid at room temperature
lead; Pb; 82; a heavy and soft metal
""")
ORDINALS = words("first second third fourth fifth sixth seventh eighth")
PLANETS = (
    ("Mercury", "the smallest planet"),
    ("Venus", "the hottest planet"),
    ("Earth", "the only planet known to have life"),
    ("Mars", "called the red planet"),
    ("Jupiter", "the largest planet"),
    ("Saturn", "famous for its rings"),
    ("Uranus", "a planet that spins on its side"),
    ("Neptune", "the windiest planet"),
)
# question; answer; a second fact
SINGLES = _table("""
how many days are in a leap year; a leap year has 366 days; The extra day is the 29th of February
how many minutes are in an hour; an hour has 60 minutes; Each minute has 60 seconds
how many legs does a spider have; a spider has eight legs; Insects have only six
how many strings does a violin have; a violin has four strings; They are played with a bow
how many players are in a football team; a football team has eleven players; One of them is the \
goalkeeper
how many sides does a hexagon have; a hexagon has six sides; Bees build cells of this shape
how many letters are in the English alphabet; the English alphabet has 26 letters; Five of them \
are always vowels
what is the largest ocean in the world; the largest ocean is the Pacific Ocean; It lies between \
Asia and America
what is the highest mountain in the world; the highest mountain is Mount Everest; It stands \
between Nepal and China
what is the largest desert in Africa; the largest desert in Africa is the Sahara; It covers much \
of the north
which river flows through London; the river Thames flows through London; It ends in the North Sea
which river flows through Paris; the river Seine flows through Paris; It ends in the English Channel
which river flows through Vienna; the river Danube flows through Vienna; It ends in the Black Sea
which river flows through Cairo; the river Nile flows through Cairo; It ends in the Mediterranean \
Sea
which river flows through Rome; the river Tiber flows through Rome; It ends in the Mediterranean Sea
at what temperature does water boil; water boils at 100 degrees Celsius; This is 212 degrees \
Fahrenheit
at what temperature does water freeze; water freezes at 0 degrees Celsius; This is 32 degrees \
Fahrenheit
who painted the Mona Lisa; the Mona Lisa was painted by Leonardo da Vinci; It hangs in Paris
who painted The Starry Night; The Starry Night was painted by Vincent van Gogh; He made it in 1889
who painted the ceiling of the Sistine Chapel; the ceiling of the Sistine Chapel was painted by \
Michelangelo; It is in Rome
who composed The Magic Flute; The Magic Flute was composed by Wolfgang Amadeus Mozart; It is an \
opera
who composed The Four Seasons; The Four Seasons was composed by Antonio Vivaldi; It is a set of \
violin concertos
who was the first person on the moon; the first person on the moon was Neil Armstrong; He landed \
there in 1969
who was the first president of the United States; the first president of the United States was \
George Washington; He took office in 1789
when did the Second World War end; the Second World War ended in 1945; It had begun in 1939
when did the First World War begin; the First World War began in 1914; It ended in 1918
when did the Berlin Wall fall; the Berlin Wall fell in 1989; It had stood since 1961
when did the Titanic sink; the Titanic sank in 1912; It had hit an iceberg
which gas do plants take in from the air; plants take in carbon dioxide from the air; They give \
off oxygen
what do bees make; bees make honey; They collect nectar from flowers
where is the Eiffel Tower; the Eiffel Tower is in Paris; It was opened in 1889
where is the Colosseum; the Colosseum is in Rome; It was built in the first century
where is the Taj Mahal; the Taj Mahal is in Agra in India; It is made of white marble
where are the pyramids of Giza; the pyramids of Giza are in Egypt; They stand near Cairo
where is the Great Barrier Reef; the Great Barrier Reef is off the coast of Australia; It is the \
largest coral reef
""")
