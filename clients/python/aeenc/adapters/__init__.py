"""What the integrations of frameworks share; no framework is imported here."""
