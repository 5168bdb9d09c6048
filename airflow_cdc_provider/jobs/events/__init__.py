"""Changes and rows of snapshots as events: what every source does the same, and what each does itself.

It stands on a job's context and ``jobs.topics``; recordings, publishing and comparisons stand on it.
"""
