"""Changes in the format of Debezium's Cassandra connector: columns, facts and types of its events."""
