"""Events of the changes table to Kafka, each once and in order: the stage, its slices, and replays.

It stands on ``jobs.events``, which makes the records, and on ``jobs.topics`` and ``jobs.channels``.
"""
