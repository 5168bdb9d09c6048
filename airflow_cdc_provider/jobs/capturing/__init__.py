"""The stage that brings changes into the changes table, and what it does where the source has lost some.

It stands on ``jobs.resuming``, ``jobs.metrics`` and ``jobs.spark``; snapshots and merges are not known here.
"""
