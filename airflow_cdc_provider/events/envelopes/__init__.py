"""Envelopes: the format of keys and values of each source."""
