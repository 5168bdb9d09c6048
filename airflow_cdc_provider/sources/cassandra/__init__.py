"""Apache Cassandra: commit-log segments from cdc_raw, snapshots over CQL."""
