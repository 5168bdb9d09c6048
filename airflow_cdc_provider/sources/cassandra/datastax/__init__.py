"""Rows after each change in the format of DataStax's CDC for Apache Cassandra."""
