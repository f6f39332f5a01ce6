"""What `aeenc status` and the MCP server say of a service."""

from aeenc import values
from aeenc.adapters.status import encoder_dict
from aeenc.cli.fleet import _row


def test_labels_of_other_spaces_stay_apart_from_those_of_the_default_space():
    applied = [("s1", "stable", "q1"), ("x1", "stable", "x9"), ("s1", "canary", "q2"), ("s2", "stable", "q3")]
    labels = tuple(values.Label(space_id=space, name=name, versions=(one,)) for space, name, one in applied)
    told = encoder_dict(values.EncoderInfo(default_space_id="s1", labels=labels))
    assert told["labels"] == {"stable": "q1", "canary": "q2"}
    assert told["labels_of_other_spaces"] == {"x1": {"stable": "x9"}, "s2": {"stable": "q3"}}
    about = _row("encoder", "127.0.0.1:1", told)[-1]
    assert {"stable = q1", "stable of space x1 = x9", "stable of space s2 = q3"} <= set(about.splitlines())
