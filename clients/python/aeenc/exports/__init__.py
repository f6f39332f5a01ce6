"""Records of runs as files for other programs: pairs, triplets, the BEIR layout. Trees: `aeenc.trees`."""

from aeenc.exports.beir import Beir, gold_judgements, rated_judgements, write_beir, write_pairs_as_beir
from aeenc.exports.judgements import (
    Judgements,
    Triplet,
    Triplets,
    judgements_of,
    last_words,
    triplets_of,
    write_triplets,
)
from aeenc.exports.pairs import read_pairs, write_pairs

__all__ = [
    "Beir",
    "Judgements",
    "Triplet",
    "Triplets",
    "gold_judgements",
    "judgements_of",
    "last_words",
    "rated_judgements",
    "read_pairs",
    "triplets_of",
    "write_beir",
    "write_pairs",
    "write_pairs_as_beir",
    "write_triplets",
]
