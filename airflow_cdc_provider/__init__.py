"""Change data capture for Apache Airflow: from four databases to lake tables and Kafka."""

__version__ = "0.1.0"
