"""Triggers: what a deferred sensor or operator waits with."""
