"""Asks remote oracles: reading of answers, retries, circuit breaker, budgets."""
