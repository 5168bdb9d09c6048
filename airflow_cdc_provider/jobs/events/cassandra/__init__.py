"""Events of Cassandra's records: Debezium's and DataStax's, with rows before and after where they are wanted.

Both recordings and the changes table come here; what reads either stands above.
"""
