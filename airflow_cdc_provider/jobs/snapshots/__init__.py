"""Snapshots: initial ones before the stream, incremental ones in chunks, and those of a custom snapshotter.

It imports ``jobs.capturing`` and ``jobs.resuming``, and the payloads of end records in ``jobs.merging``.
"""
