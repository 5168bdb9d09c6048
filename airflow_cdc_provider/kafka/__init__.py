"""Access to Kafka: clients, producer, publishing positions, and the schema registry.

Built on ``confluent-kafka`` (librdkafka). Independent of sources and events: records are
Arrow batches with the columns documented in :mod:`.producer`, schemas are texts (:mod:`.registry`).
"""
