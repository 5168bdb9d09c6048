"""Decode payloads to contributions: the part shared by all CQL databases."""
