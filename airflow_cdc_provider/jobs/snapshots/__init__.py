"""Tables read in full: before the stream, beside it in chunks, or as a snapshotter of one's own says.

It stands on ``jobs.capturing`` and ``jobs.resuming``, and asks ``jobs.merging`` what waits.
"""
