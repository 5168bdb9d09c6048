"""Recordings without a server: lines of events or of rows, a module per source.

It imports ``jobs.events``; only the command line imports it.
"""
