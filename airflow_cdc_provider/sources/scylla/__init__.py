"""ScyllaDB: the log tables of its change data capture, and snapshots, over CQL."""
