"""Envelopes: per source, the form of keys and values that its readers know."""
