"""What stands with the offset, so that the next job goes on where one ended: progress, requests, whose it is.

It knows a job's context; every stage that captures, reads tables or merges stands on it.
"""
