"""What a job tells of itself when it is asked or has ended: its result, and where each table stands.

It looks at what capturing, merging and snapshots left; it changes nothing.
"""
