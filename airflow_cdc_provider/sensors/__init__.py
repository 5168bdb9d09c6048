"""Sensors: each waits for one thing, plain or deferred alike."""
