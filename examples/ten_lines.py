"""A remote oracle in ten lines: python examples/ten_lines.py."""

import aeenc


class MyOracle(aeenc.Oracle):
    """What speaks of iron explains everything."""

    name = "mine"

    def judge(self, task: aeenc.Task) -> list[str]:
        return [candidate.id for candidate in task.candidates if "iron" in candidate.text]


MyOracle().serve("127.0.0.1:50060")
