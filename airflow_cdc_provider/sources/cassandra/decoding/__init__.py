"""Payloads of changes to contributions: what updates and snapshot rows say, cell by cell."""
