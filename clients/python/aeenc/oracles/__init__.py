"""Reference oracles, and the client that calls any oracle. The class to subclass is `aeenc.Oracle`."""
