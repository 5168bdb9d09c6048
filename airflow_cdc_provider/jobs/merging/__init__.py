"""The merge stage: it selects due tables, decodes pending changes, merges them, and rereads unresolved keys.

It imports ``jobs.resuming`` and ``jobs.spark``; it doesn't depend on how changes were captured.
"""
