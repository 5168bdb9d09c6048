"""Comparison of mirrors with their source, and with the topics of the same changes.

It imports ``jobs.publishing``, ``jobs.merging`` and ``jobs.reporting``; only the application imports it.
"""
