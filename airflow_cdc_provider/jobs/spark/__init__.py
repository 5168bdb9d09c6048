"""What every stage needs of Spark: a session, the reading of a source's partitions, and what failures mean.

It knows the job's spec and nothing else of ``jobs``.
"""
