"""The kinds of records that outlive a process, as `records` names them. A new kind fails until it stands here."""

KINDS: tuple[str, ...] = ()
