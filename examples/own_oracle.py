"""An oracle of your own: it accepts a premise that shares two uncommon words with the query. A stand-in for a model.

python examples/own_oracle.py 127.0.0.1:50060
aeenc up --oracle mine=127.0.0.1:50060
aeenc sample science --data data/sample --oracle mine --step 5    # 5 candidates at a time, until a node is complete

Without `aeenc up`, name it in the sampler's AEENC_SAMPLER_ORACLES (README.md beside this file).
"""

from __future__ import annotations

import sys

import aeenc

COMMON = {"a", "an", "the", "is", "are", "of", "to", "in", "and", "by", "for", "from", "that", "it", "can", "with"}


class SharedWords(aeenc.Oracle):
    """Explains: two words in common. Abstains: one. Refuses: none. A node is complete once all its words are told."""

    name = "shared-words"

    def judge(self, task: aeenc.Task) -> aeenc.Answer:
        """One verdict per candidate; what is left out counts as unseen. A complete node is asked no more in steps."""
        wanted = set(task.query.split()) - COMMON
        told = {one.id: self.verdict(wanted & set(one.text.split())) for one in task.candidates}
        texts = [one.text for one in task.candidates if told[one.id].judgement == aeenc.oracle.EXPLAINS]
        covered = {word for text in (*texts, *(one.text for one in task.accepted)) for word in text.split()}
        return aeenc.Answer(told, node_verdict="complete" if wanted <= covered else None)

    @staticmethod
    def verdict(shared: set[str]) -> aeenc.Verdict:
        """The verdict on a premise, with the number of shared words as its grade."""
        if len(shared) >= 2:
            return aeenc.Verdict(aeenc.oracle.EXPLAINS, grade=float(len(shared)))
        return aeenc.Verdict(aeenc.oracle.ABSTAINS if shared else aeenc.oracle.REFUSES)


if __name__ == "__main__":
    SharedWords().serve(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50060")
