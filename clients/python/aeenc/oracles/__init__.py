"""Reference oracles, and the client that calls any oracle. What a user subclasses is `aeenc.Oracle`."""
