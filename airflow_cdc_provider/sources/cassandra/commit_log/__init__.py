"""Commit logs: segments in cdc_raw, planned in batches and read to change records."""
