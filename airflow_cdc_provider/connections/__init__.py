"""Airflow connections of stock types that a declaration names: Kafka, registry, Pulsar, stores."""
