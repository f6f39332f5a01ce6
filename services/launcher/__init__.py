"""Starts and stops all services on one machine, and shows the whole loop. No service's image contains it."""
