"""What Cassandra and ScyllaDB share: CQL schemas, types and value kernels."""
