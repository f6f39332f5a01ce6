"""Draws ten made-up domains, each with facts and the hypotheses that follow from them: what a user brings, ten times.

No two explain in the same way: along a chain, up a tree of kinds, from part to whole, from joint causes, by a rule or
its exception, in other words, from quantities, from place to country, by years, by roles. Most hypotheses name
something that few others name, so that most facts that explain a test were never judged. Other facts name the same
things and explain nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

JUDGED = 50  # hypotheses
HYPOTHESES = 120
Explained = tuple[str, list[str]]  # a hypothesis and the facts from which it follows
Drawn = tuple[list[Explained], list[str]]  # and the facts that explain nothing


@dataclass(frozen=True)
class Domain:
    """Facts, and hypotheses with the facts that explain them; the first JUDGED are to be learnt from."""

    facts: list[str]
    explained: list[Explained]

    @property
    def judged(self) -> list[Explained]:
        """The hypotheses that an oracle judges."""
        return self.explained[:JUDGED]

    @property
    def test(self) -> list[Explained]:
        """The hypotheses that measure what was learnt."""
        return self.explained[JUDGED:]

    @property
    def seen(self) -> set[str]:
        """The facts that explain a judged hypothesis."""
        return {fact for _, facts in self.judged for fact in facts}


def _words(text: str) -> list[str]:
    return text.split("|")


PLACES = _words("Ash|Birch|Cold|Dun|Elm|Fox|Green|Hart|Ivy|Kings|Long|Mill|North|Oak|Red")
ENDINGS = _words("bury|combe|den|field|ford|ham|ley|mere|stead|thorpe|ton|well|wick|wood|worth")
FIRST = _words("Ada|Bela|Cora|Dora|Emil|Frida|Gus|Hugo|Ines|Jon|Kai|Lena|Max|Nora|Otto|Paul|Rosa|Sven|Tom|Vera")
LAST = _words("Abel|Brandt|Castor|Diaz|Engel|Falk|Grau|Holm|Iversen|Jung|Klein|Lund|Moser|Nolte|Olsen|Prinz")
MONTHS = _words("January|March|April|May|June|July|August|October|November|December")
COLOURS = _words("black|blue|brown|green|grey|red|white|yellow")


def _joined(draw: Random, between: str, *parts: Sequence[str]) -> list[str]:
    """Joins words of each part in all ways, and returns them in a drawn order."""
    made = [between.join(words) for words in itertools.product(*parts)]
    return draw.sample(made, len(made))


def _dealt(draw: Random, keys: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Gives each key a value; all values are used about equally often."""
    order = draw.sample(values, len(values))
    return {key: order[n % len(order)] for n, key in enumerate(draw.sample(keys, len(keys)))}


def rivers(draw: Random) -> Drawn:
    """A chain: a village has works, these let something out, and that harms an animal."""
    works = _words("brewery|dye works|gasworks|paper mill|sawmill|smelter|sugar mill|tannery")
    lets_out = _dealt(draw, works, _words("acid|ammonia|chlorine|lead|mercury|molasses|phenol|tar"))
    animals, harms = _words("carp|crayfish|eels|frogs|otters|perch|swans|trout"), _words("die|fall ill|leave|starve")
    harmed = {
        stuff: [(animal, draw.choice(harms)) for animal in draw.sample(animals, 3)] for stuff in lets_out.values()
    }
    explained, asides = [], []
    for village in _joined(draw, "", PLACES, ENDINGS)[:HYPOTHESES]:
        work = draw.choice(works)
        stuff = lets_out[work]
        animal, harm = draw.choice(harmed[stuff])
        facts = [
            f"{village} has a {work}",
            f"every {work} lets out {stuff}",
            f"{stuff} in the water makes {animal} {harm}",
        ]
        explained.append((f"downstream of {village} {animal} {harm}", facts))
        asides += [
            f"{village} holds a fair in {draw.choice(MONTHS)}",
            f"downstream of {village} there is a {draw.choice(COLOURS)} bridge",
        ]
    return explained, asides


def beasts(draw: Random) -> Drawn:
    """A taxonomy: a species belongs to a genus, the genus to a family, and all of the family have a trait."""
    families = [f"{word} ones" for word in _words("crested|hooded|horned|maned|ringed|scaly")]
    lands = _words("cave|cliff|dune|forest|heath|lake|marsh|meadow|moor|reed|reef|sand|shore|snow|stone|swamp|valley")
    genera = [f"{land} beast" for land in lands]
    traits = _words(
        "builds a nest of mud|carries its young|changes colour|digs with its nose|hunts at night|sheds its skin|"
        "sings before rain|sleeps through winter|stores nuts|swims under ice|throws stones|walks backwards"
    )
    family_of, had_by = _dealt(draw, genera, families), _dealt(draw, traits, families)
    heads, tails = (
        _words("bol|dar|fen|gri|hul|kar|lum|mor|nar|pel|sor|tar"),
        _words("bit|dor|gan|lek|mit|nok|pin|rax|sel|tun|vin|zor"),
    )
    explained, asides = [], []
    for name in _joined(draw, "", heads, tails)[:HYPOTHESES]:
        genus = draw.choice(genera)
        family = family_of[genus]
        trait = draw.choice([one for one in traits if had_by[one] == family])
        facts = [f"the {name} is a {genus}", f"every {genus} is among the {family}", f"any of the {family} {trait}"]
        explained.append((f"the {name} {trait}", facts))
        asides += [
            f"nobody knows whether the {name} {draw.choice(traits)}",
            f"{draw.choice(FIRST)} {draw.choice(LAST)} saw the {name} first",
        ]
    return explained, asides


def machines(draw: Random) -> Drawn:
    """Part and whole: a machine has a unit, maybe within another one, and the unit a part, whose wear ails all."""
    makers = _words("Adler|Borg|Ceres|Drake|Elba|Ford|Gotha|Hansa|Ilmen|Jura|Kron|Lux|Mars|Nord|Orion")
    kinds, units = (
        _words("crane|drill|lathe|loom|mixer|pump|press|saw"),
        _words("brake|coupling|feeder|gearbox|governor|motor|regulator|winch"),
    )
    parts = _words("bearing|belt|bolt|cam|chain|gasket|lever|pawl|pin|piston|spring|valve|washer|wedge|wheel|wire")
    unit_of, ails = (
        _dealt(draw, parts, units),
        _dealt(draw, units, _words("hum|jerk|leak|rattle|slip|smoke|stall|stop")),
    )
    within = _dealt(draw, units, ["carriage", "frame", "", ""])
    explained, asides = [], []
    for name in _joined(draw, " ", makers, kinds)[:HYPOTHESES]:
        part = draw.choice(parts)
        unit = unit_of[part]
        facts = [f"every {unit} has a {part}", f"machines with a bad {unit} {ails[unit]}"]
        facts += [f"the {name} has a {within[unit] or unit}"]
        facts += [f"every {within[unit]} has a {unit}"] if within[unit] else []
        explained.append((f"a worn {part} makes the {name} {ails[unit]}", facts))
        asides += [f"the {name} is painted {draw.choice(COLOURS)}", f"the {name} belongs to {draw.choice(LAST)}"]
    return explained, [*asides, *(f"a worn {part} costs {draw.randint(2, 90)} crowns" for part in parts)]


def harvests(draw: Random) -> Drawn:
    """Joint causes: what a field is made of, and the weather of a year, together spoil a crop."""
    soils, weathers = _words("chalk|clay|gravel|loam|peat|sand"), _words("drought|flooding|frost|hail|heat|rain")
    crops = _words("barley|beet|cabbage|flax|hops|maize|oats|rye")
    year_of = {str(year): draw.choice(weathers) for year in range(1801, 1825)}
    spoilt = {pair: draw.sample(crops, 2) for pair in itertools.product(soils, weathers)}
    explained, asides = [], []
    for village in _joined(draw, "", PLACES, ENDINGS)[:HYPOTHESES]:
        soil, year = draw.choice(soils), draw.choice(list(year_of))
        weather = year_of[year]
        crop = draw.choice(spoilt[soil, weather])
        facts = [
            f"the soil of {village} is {soil}",
            f"in {year} there was {weather}",
            f"after {weather}, {crop} must fail on {soil}",
        ]
        explained.append((f"in {year} the {crop} of {village} failed", facts))
        asides += [
            f"{village} holds a market in {draw.choice(MONTHS)}",
            f"the school of {village} is {draw.choice(COLOURS)}",
        ]
    return explained, asides


def museum(draw: Random) -> Drawn:
    """A rule or its exception: things of a kind stay or travel; for what some donors gave, the opposite holds."""
    things = _words("bell|bowl|chest|clock|coin|comb|crown|cup|drum|flute|lamp|mask|ring|shield|sword")
    kinds, donors = _words("bequest|curio|find|heirloom|loan|relic|trophy|votive"), draw.sample(LAST, 12)
    stays = {kind: n % 2 == 0 for n, kind in enumerate(draw.sample(kinds, len(kinds)))}
    explained, asides = [], []
    for n, name in enumerate(_joined(draw, " ", COLOURS, things)[:HYPOTHESES]):
        kind, is_exception = draw.choice(kinds), n % 2 == 0
        donor = draw.choice(donors[:6] if is_exception else donors[6:])
        gift = f"the {name} came from {donor}"
        facts = [f"the {name} is a {kind}", f"{kind}s are {'kept under lock' if stays[kind] else 'lent to all'}"]
        facts += [gift, f"for gifts of {donor} the opposite rule holds"] if is_exception else []
        stays_here = stays[kind] != is_exception
        explained.append((f"the {name} {'never leaves the house' if stays_here else 'travels abroad'}", facts))
        asides += [gift, f"the {name} leaves dust on the shelf", f"the {name} was cleaned in {draw.choice(MONTHS)}"]
    return explained, asides


def trades(draw: Random) -> Drawn:
    """Other words: the facts share no word with a hypothesis but "the"; those that share some explain nothing."""
    people = _words(
        "author=writer|captain=skipper|child=youngster|farmer=grower|lawyer=attorney|physician=doctor|"
        "priest=clergyman|shopkeeper=merchant|soldier=trooper|teacher=tutor|thief=burglar|worker=labourer"
    )
    verbs = _words(
        "buys=purchases|conceals=hides|damages=harms|mends=repairs|praises=commends|seeks=looks for|"
        "sends=dispatches|watches=observes"
    )
    things = _words(
        "boat=vessel|car=automobile|gift=present|house=dwelling|medicine=drug|picture=painting|rock=stone|"
        "street=road|trousers=pants|trash=rubbish|weapon=firearm|woods=forest"
    )
    other_words = dict(pair.split("=", 1) for pair in (*people, *verbs, *things))
    triples = itertools.product(*([pair.split("=")[0] for pair in part] for part in (people, verbs, things)))
    explained, asides = [], []
    for person, verb, thing in draw.sample(list(triples), HYPOTHESES):
        who, does, what = (other_words[word] for word in (person, verb, thing))
        facts = [f"any {who} {does} something now and then", f"somebody {does} every {what}"]
        explained.append((f"the {person} {verb} the {thing}", facts))
        another = draw.choice(things).split("=")[0]
        asides += [f"the {person} dreams of the {another}", f"nobody {verb} the {thing} in {draw.choice(MONTHS)}"]
    return explained, asides


def freight(draw: Random) -> Drawn:
    """Quantities: a load exceeds, in another unit, what a carrier takes: by weight, by length, or by worth."""
    goods = _words("bricks|cheese|coal|glass|grain|honey|nails|paper|salt|silk|tiles|wine")
    loads = _joined(draw, " of ", _words("barrel|bundle|crate|pallet|roll|sack"), goods)[:50]
    carriers = _joined(draw, " ", COLOURS, _words("barge|cart|coach|sledge|truck"))
    said = {
        "heavy": ("weighs {} stone", "bears {} pounds", "a stone is fourteen pounds"),
        "long": ("measures {} yards", "has room for {} feet", "a yard is three feet"),
        "precious": ("is worth {} crowns", "is insured for {} shillings", "a crown is five shillings"),
    }
    of = {(load, how): f"a {load} {said[how][0].format(draw.randint(60, 99))}" for load in loads for how in said}
    takes = {
        (carrier, how): f"the {carrier} {said[how][1].format(draw.randint(20, 150))}"
        for carrier, how in itertools.product(carriers, said)
    }
    explained = [
        (f"the {load} is too {how} for the {carrier}", [of[load, how], takes[carrier, how], said[how][2]])
        for load, carrier, how in draw.sample(list(itertools.product(loads, carriers, said)), HYPOTHESES)
    ]
    return explained, [*of.values(), *takes.values(), *(f"the {carrier} is too old for races" for carrier in carriers)]


def travels(draw: Random) -> Drawn:
    """Place within place: a village lies in a county, the county in a land, and the land has a custom."""
    lands = _words("Arvia|Belmar|Corin|Doria|Estal|Farren|Goria|Hestia")
    names = _words("Al|Bor|Cam|Der|Ex|Fal|Glan|Hol|Kel|Lin|Mon|Nor|Ox|Pem|Rad|Stir|Tav|Ul|Wil|York")
    customs = _words(
        "bread is baked at night|children vote|doors have no locks|horses are holy|letters are free|meals are silent|"
        "music is forbidden|nobody works on Monday|shops close at noon|tea is salted|trains are free|women rule|"
        "wells are blessed|winter is a feast|dogs wear bells|names are secret"
    )
    counties = [f"{name}shire" for name in names]
    land_of, held_in = _dealt(draw, counties, lands), _dealt(draw, customs, lands)
    villages = _joined(draw, "", PLACES, ENDINGS)
    explained, asides = [], []
    for village, another in itertools.pairwise(villages[: HYPOTHESES + 1]):
        county = draw.choice(counties)
        land = land_of[county]
        custom = draw.choice([one for one in customs if held_in[one] == land])
        facts = [f"{village} lies in {county}", f"{county} belongs to {land}", f"by the law of {land}, {custom}"]
        explained.append((f"in {village} {custom}", facts))
        asides += [
            f"{village} is a day's walk from {another}",
            f"in {village} there is a {draw.choice(COLOURS)} tower",
        ]
    return explained, [*asides, *(f"a song tells how {custom}" for custom in customs)]


def buildings(draw: Random) -> Drawn:
    """Time: a building is older than another; of some, only the ruler under whom they were begun is known."""
    epithets = _words("Bald|Bold|Fair|Good|Great|Lame|Meek|Old|Pious|Stout|Wise|Young")
    rulers = [f"{name} the {word}" for name, word in zip(draw.sample(FIRST, 12), epithets, strict=True)]
    places = _joined(draw, "", PLACES, ENDINGS)[:50]
    told: dict[str, tuple[int, list[str]]] = {}  # the year, and the facts that tell it
    asides = []
    for n, name in enumerate(_joined(draw, " ", places, _words("abbey|bridge|castle|mill|tower"))):
        reign = draw.randrange(len(rulers))
        year = 1500 + 20 * reign
        of_ruler = [f"the {name} was begun under {rulers[reign]}", f"{rulers[reign]} came to the throne in {year}"]
        told[name] = year, of_ruler if n % 2 else [f"the {name} was opened in {year + 5}"]
        asides += [told[name][1][0], f"the {name} was painted in {draw.randint(1800, 1900)}"]
    older = [pair for pair in itertools.permutations(told, 2) if told[pair[0]][0] < told[pair[1]][0]]
    explained = [
        (f"the {one} is older than the {other}", [*told[one][1], *told[other][1]])
        for one, other in draw.sample(older, HYPOTHESES)
    ]
    return explained, asides


def offices(draw: Random) -> Drawn:
    """Roles: a person has an office, or stands in for one who has; the office keeps a key, which some deed needs."""
    roles = _words("archivist|bailiff|cashier|clerk|envoy|gardener|herald|librarian|marshal|notary|steward|warden")
    keys = _words("amber|brass|copper|glass|golden|iron|ivory|leaden|silver|stone|tin|wooden")
    deeds = _words(
        "open the cellar|ring the bell|read the wills|feed the bears|stop the clock|sell the wine|call the guard|"
        "bless the bread|lock the gate|burn the letters|light the tower|weigh the gold|cut the roses|count the votes|"
        "fly the flag|drain the pond|seal the deeds|hire the cooks|choose the music|pardon thieves|lend the books|"
        "move the border|name the ships|ride the elephant"
    )
    key_of, needs = _dealt(draw, roles, keys), _dealt(draw, deeds, keys)
    people = _joined(draw, " ", FIRST, LAST)
    explained, asides = [], []
    for n, (person, another) in enumerate(zip(people[:HYPOTHESES], people[HYPOTHESES:], strict=False)):
        role = draw.choice(roles)
        key = key_of[role]
        deed = draw.choice([one for one in deeds if needs[one] == key])
        facts = [f"the {role} keeps the {key} key", f"one needs the {key} key to {deed}"]
        holder = person if n % 3 else another
        facts += [f"{holder} serves as {role}", *([] if n % 3 else [f"{person} stands in for {another}"])]
        explained.append((f"{person} may {deed}", facts))
        asides += [f"{person} was born in {draw.choice(MONTHS)}", f"{person} may marry {draw.choice(people[-40:])}"]
    return explained, asides


GENERATORS = {
    made.__name__: made
    for made in (rivers, beasts, machines, harvests, museum, trades, freight, travels, buildings, offices)
}


def domain(name: str, seed: int = 0) -> Domain:
    """Draws a domain by its name; the same one for the same seed."""
    draw = Random(f"{name} {seed}")
    explained, asides = GENERATORS[name](draw)
    draw.shuffle(explained)
    return Domain(sorted({*asides, *_facts(explained)}), explained)


def _facts(explained: Iterable[Explained]) -> set[str]:
    return {fact for _, facts in explained for fact in facts}
