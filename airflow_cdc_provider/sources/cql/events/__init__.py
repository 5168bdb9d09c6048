"""What events of Cassandra and ScyllaDB share: rows of mirrors with static columns."""
