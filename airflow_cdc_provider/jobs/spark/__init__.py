"""Spark for all stages: the session, the reading of a source's partitions, and the mapping of failures.

It imports only the job's spec from ``jobs``.
"""
