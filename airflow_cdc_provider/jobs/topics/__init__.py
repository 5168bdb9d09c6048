"""What a declaration's ``publish`` means for all topics: their names and rules, and how records are encoded.

It knows nothing else of ``jobs``; events, channels and publishing stand on it.
"""
