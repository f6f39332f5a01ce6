"""The connection to a service: addresses, channels, errors on the wire, and the blocking face. Knows no service."""
