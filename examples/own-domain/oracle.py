"""The oracle of this domain, which knows what explains what: python examples/own-domain/oracle.py.

It writes the files of `facts.py` first.
"""

from facts import chains, main

import aeenc

EXPLAINED = dict(chains())


class Cook(aeenc.Oracle):
    """Accepts the facts from which a hypothesis follows."""

    name = "cook"

    def judge(self, task: aeenc.Task) -> list[str]:
        return [candidate.id for candidate in task.candidates if candidate.text in EXPLAINED.get(task.query, ())]


if __name__ == "__main__":
    main()
    Cook().serve("127.0.0.1:50060")
