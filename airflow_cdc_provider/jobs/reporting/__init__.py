"""Reports of a job: its result, and the status of each table.

It reads the state that capturing, merging and snapshots stored, and changes nothing.
"""
