"""Decode payloads of changes, updates and snapshot rows, to contributions of cells."""
