"""Follows the registry's labels: loads and checks versions, serves them and drops them."""
