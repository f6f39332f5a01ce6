"""What every service shares: bootstrap, settings, credentials, health, metrics. Nothing of any domain."""
