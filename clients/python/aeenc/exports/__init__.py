"""What runs have recorded, as files for other programs: pairs, triplets, the BEIR layout. Trees: `aeenc.trees`."""

from aeenc.exports.beir import Beir, gold_judgements, write_beir, write_pairs_as_beir
from aeenc.exports.judgements import Judgements, judgements_of, last_words
from aeenc.exports.pairs import read_pairs, write_pairs
from aeenc.exports.triplets import Triplet, Triplets, triplets_of, write_triplets

__all__ = [
    "Beir",
    "Judgements",
    "Triplet",
    "Triplets",
    "gold_judgements",
    "judgements_of",
    "last_words",
    "read_pairs",
    "triplets_of",
    "write_beir",
    "write_pairs",
    "write_pairs_as_beir",
    "write_triplets",
]
