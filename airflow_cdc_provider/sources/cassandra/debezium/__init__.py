"""Changes as Debezium's Cassandra connector tells them: columns, facts and types of its events."""
