"""Writes facts and hypotheses about cooking: python examples/own-domain/facts.py.

A hypothesis, such as "tofu with pectin sets", follows from three facts: what the ingredient holds, what this substance
does when it is treated, and what comes of that. Two of the three share no word with it. Other facts name the same
ingredient and explain nothing.
"""

import random
from pathlib import Path

FOODS = [
    "apple",
    "bean",
    "carrot",
    "date",
    "egg",
    "fig",
    "grape",
    "honey",
    "kale",
    "leek",
    "mango",
    "nut",
    "oat",
    "pea",
    "quince",
    "rice",
    "soy",
    "tomato",
    "walnut",
    "yam",
]
SUBSTANCES = ["acid", "fat", "fibre", "pectin", "protein", "starch", "sugar", "water"]
TREATMENTS = ["cooling", "drying", "freezing", "heating", "kneading", "resting", "salting", "stirring"]
EFFECTS = "bonds break|chains tangle|crystals grow|drops join|gas forms|molecules unfold|particles sink|walls burst"
RESULTS = ["browns", "foams", "hardens", "separates", "sets", "shrinks", "softens", "thickens"]
ASIDES = [
    "grows in the south",
    "is sold in autumn",
    "was rare once",
    "keeps for a week",
    "is named in old songs",
    "is cheap",
]


def chains(seed: int = 0) -> list[tuple[str, list[str]]]:
    """Makes hypotheses, each with the three facts that explain it; the same ones for the same seed."""
    generator = random.Random(seed)
    effects = EFFECTS.split("|")
    by_treatment = {(one, how): generator.choice(effects) for one in SUBSTANCES for how in TREATMENTS}
    made = []
    for food in FOODS:
        substance = generator.choice(SUBSTANCES)
        for how in TREATMENTS:
            effect = by_treatment[substance, how]
            facts = [
                f"{food} is rich in {substance}",
                f"by {how}, in {substance}, {effect}",
                f"what holds a mass where {effect} {RESULTS[effects.index(effect)]}",
            ]
            made.append((f"{food} {RESULTS[effects.index(effect)]} after {how}", facts))
    generator.shuffle(made)
    return made


def main() -> None:
    """Writes `facts.txt`, and `train.txt` and `test.txt` with hypotheses, into this folder."""
    made, folder = chains(), Path(__file__).parent
    facts = {fact for _, explained in made for fact in explained}
    facts |= {f"{food} {aside}" for food in FOODS for aside in ASIDES}
    (folder / "facts.txt").write_text("".join(f"{fact}\n" for fact in sorted(facts)))
    for name, part in (("train", made[:50]), ("test", made[50:])):
        (folder / f"{name}.txt").write_text("".join(f"{hypothesis}\n" for hypothesis, _ in part))


if __name__ == "__main__":
    main()
