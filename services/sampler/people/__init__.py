"""Puts nodes before people: a durable queue of tasks, leased, answered, taken back, amended, adjudicated."""
