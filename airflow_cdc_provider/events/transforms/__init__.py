"""Transforms of events between envelope and encoder, on Arrow columns.

A transform takes an envelope and returns pieces (:class:`.pieces.Piece`): envelopes of subsets of its rows,
with sort keys of their records. Rows with individual schemas are grouped by schema (:class:`.pieces.Rows`),
so that Arrow processes whole groups. This package doesn't depend on a source.
"""
