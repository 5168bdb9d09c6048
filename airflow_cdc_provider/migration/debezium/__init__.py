"""Translation of properties of Debezium's and ScyllaDB's connectors: a module per connector and topic."""
