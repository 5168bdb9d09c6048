"""Recordings without a server: lines of events or of rows, a module per source.

It stands on ``jobs.events``; only the command line stands on it.
"""
