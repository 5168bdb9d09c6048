"""Snapshots over CQL: token ranges, and conversion of the server's rows to change records."""
