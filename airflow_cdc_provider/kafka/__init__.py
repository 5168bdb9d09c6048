"""What knows a Kafka broker and what stands beside it: clients, producer, positions, schema registry.

Built on ``confluent-kafka`` (librdkafka), extra ``kafka``. Knows nothing of sources and of events: records
come as Arrow batches with the columns that :mod:`.producer` names, schemas as texts (:mod:`.registry`).
"""
