"""The stage that brings pending changes into mirrors: what is due, decoding, doubts, and what is set apart.

It stands on ``jobs.resuming`` and ``jobs.spark``; how changes came into the changes table is not known here.
"""
