"""The capture stage: it writes changes into the changes table and handles positions the source has lost.

It imports ``jobs.resuming``, ``jobs.metrics`` and ``jobs.spark``, but neither snapshots nor merges.
"""
