"""The machinery that every service shares: start-up, settings, credentials, health, metrics. It has no domain."""
