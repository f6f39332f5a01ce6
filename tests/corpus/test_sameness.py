"""Which texts count as the same: once normalised, at a build that asks for it; by their key, before people."""

import pytest

from services.corpus.sameness import normalized, same_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ice is cold.", "ice is cold"),
        ("ice  is\tcold ", "ice is cold"),
        ("well-known facts", "well known facts"),
        ("a (frozen) lake", "a frozen lake"),
        ("cafe\u0301", "CAF\u00c9"),
        ("\ufb01sh swim", "fish swim"),
        ("stra\u00dfe", "STRASSE"),
        ("\u201cquoted\u201d \u2026", '"quoted"'),
        ("zero\u200bwidth", "zero width"),
    ],
)
def test_what_makes_no_difference_is_left_out(one, other):
    assert normalized(one) == normalized(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3.5 metres", "35 metres"),
        ("it is -5 degrees", "it is 5 degrees"),
        ("5% of it", "5 of it"),
        ("2 + 2", "2 2"),
        ("ice is cold", "ice is colder"),
        ("!", "?"),
        ("\u0915\u093f", "\u0915\u0940"),  # the vowel signs of Devanagari
        ("re\u0301sume\u0301", "resume"),
    ],
)
def test_what_makes_a_difference_stays(one, other):
    assert normalized(one) != normalized(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A plant is a kind of organism", "plants are a kind of organism."),
        ("an eclipse occurs", "Eclipses occur!"),
        ("foxes hunt flies", "a fox hunts a fly"),
        ("glass is grass", "glasses are grass"),
        ("water boils at 100 \u2103", "Water boils  at 100 \u00b0C"),
        ("\ufb01sh swim", "FISH SWIM"),
        ("stra\u00dfe", "STRASSE"),
        ("cafe\u0301", "CAF\u00c9"),
        ('the "cold" ice', "cold ice"),
    ],
)
def test_texts_that_say_the_same_have_one_key(one: str, other: str):
    assert same_key(one) == same_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ice forms at > 5 degrees", "ice forms at < 5 degrees"),
        ("it is -5 degrees", "it is 5 degrees"),
        ("it is - 5 degrees", "it is 5 degrees"),
        ("the value is -x", "the value is x"),
        ("C is a language", "C++ is a language"),
        ("x = y", "x \u2260 y"),
        ("x = y", "x != y"),
        ("3.5 metres", "35 metres"),
        ("5% of it", "5 of it"),
        ("the earth was hot", "the earth is hot"),
        ("oranges have vitamin A", "oranges have vitamin"),
        ("a causes b", "b causes a"),
        ("heat melts ice", "heat melts snow"),
        ("gas is matter", "gas is not matter"),
        ("!", "?"),
        ("the", "is"),
    ],
)
def test_a_sign_that_changes_the_meaning_changes_the_key(one: str, other: str):
    assert same_key(one) != same_key(other)
