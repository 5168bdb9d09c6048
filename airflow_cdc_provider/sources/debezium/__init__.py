"""A source that reads existing topics with events of any Debezium connector into mirrors."""
