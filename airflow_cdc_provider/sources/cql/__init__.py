"""Shared by Cassandra and ScyllaDB: CQL schemas, types and value kernels."""
