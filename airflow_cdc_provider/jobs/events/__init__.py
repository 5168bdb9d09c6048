"""Changes and rows of snapshots as events: the parts that all sources share, and a folder for each source.

It imports the parts of a run and ``jobs.topics``; recordings, publishing and comparisons import it.
"""
