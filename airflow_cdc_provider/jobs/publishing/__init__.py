"""Events of the changes table to Kafka, each once and in order: the stage, its slices, and replays.

It imports ``jobs.events``, which builds the records, and ``jobs.topics`` and ``jobs.channels``.
"""
