"""Are mirrors what they should be? Compared with their source, and with the topics of the same changes.

It stands on ``jobs.publishing``, ``jobs.merging`` and ``jobs.reporting``; only the application knows it.
"""
