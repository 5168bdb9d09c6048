"""Shared data formats: change records, contributions and cell rows, as Arrow schemas and bytes."""
