"""What every service shares: bootstrap, settings, credentials, health, metrics, stores. Nothing of any domain."""
