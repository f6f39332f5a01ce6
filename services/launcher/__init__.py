"""One machine: starts and stops all services, and shows the whole loop. Not part of any service's image."""
