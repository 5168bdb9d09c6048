"""Change data capture for Apache Airflow: Cassandra, ScyllaDB, MongoDB and Vitess to lake tables and Kafka."""

__version__ = "0.1.0"
