"""Records of runs as files for other programs: pairs, triplets, BEIR; lists for provers. Trees: `aeenc.trees`."""

from aeenc.exports.beir import gold_judgements, write_beir, write_pairs_as_beir
from aeenc.exports.judgements import (
    Judgements,
    judgements_of,
    last_words,
    write_triplets,
)
from aeenc.exports.pairs import read_pairs, write_pairs
from aeenc.exports.task3 import conclusions_of, task3_record, task3_sentences, write_task3

__all__ = [
    "Judgements",
    "conclusions_of",
    "gold_judgements",
    "judgements_of",
    "last_words",
    "read_pairs",
    "task3_record",
    "task3_sentences",
    "write_beir",
    "write_pairs",
    "write_pairs_as_beir",
    "write_task3",
    "write_triplets",
]
