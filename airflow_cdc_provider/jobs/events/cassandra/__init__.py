"""Events of Cassandra's records in the forms of Debezium and DataStax, optionally with rows before and after.

Both recordings and the changes table use it; the readers of either are outside of this folder.
"""
