"""What `aeenc status` and the MCP server say of a service."""

import time

from aeenc.adapters.status import PATIENCE_S, ask, encoder_dict
from aeenc.cli.fleet import _row
from aeenc.errors import Unavailable
from aeenc.transport.targets import SERVICES, Targets
from aeenc.v1 import encoder_pb2


def test_labels_of_other_spaces_stay_apart_from_those_of_the_default_space():
    applied = [("s1", "stable", "q1"), ("x1", "stable", "x9"), ("s1", "canary", "q2"), ("s2", "stable", "q3")]
    info = encoder_pb2.EncoderServiceGetInfoResponse(default_space_id="s1")
    for space, name, version in applied:
        info.labels.add(space_id=space, name=name, versions=[version])
    told = encoder_dict(info)
    assert told["labels"] == {"stable": "q1", "canary": "q2"}
    assert told["labels_of_other_spaces"] == {"x1": {"stable": "x9"}, "s2": {"stable": "q3"}}
    about = _row("encoder", "127.0.0.1:1", told)[-1]
    assert {"stable = q1", "stable of space x1 = x9", "stable of space s2 = q3"} <= set(about.splitlines())


async def test_that_nothing_answers_is_said_at_once():
    targets = Targets(**dict.fromkeys(SERVICES, "127.0.0.1:1"))
    begun = time.monotonic()
    answers = await ask(targets)
    assert {type(answer) for answer in answers.values()} == {Unavailable}
    assert time.monotonic() - begun < PATIENCE_S / 2
