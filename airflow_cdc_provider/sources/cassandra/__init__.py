"""Apache Cassandra: commit-log segments from cdc_raw, snapshots over CQL.

Where a docstring says "reference §n" it means a section of ``docs/formats/cassandra-commit-log.md``.
"""
