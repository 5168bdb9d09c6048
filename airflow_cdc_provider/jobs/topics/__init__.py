"""Effect of the declaration's ``publish`` on all topics: their names and rules, and the encoding of records.

It imports nothing else of ``jobs``; events, channels and publishing import it.
"""
