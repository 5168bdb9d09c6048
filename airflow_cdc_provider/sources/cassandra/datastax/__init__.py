"""Rows after each change as DataStax's CDC for Apache Cassandra tells them."""
