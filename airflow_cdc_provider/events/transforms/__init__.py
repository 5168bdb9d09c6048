"""Transforms: events in their envelope to other records, as columns, before they are encoded.

A transform takes an envelope and gives pieces (:class:`.pieces.Piece`): envelopes of some of its rows each,
with what sorts their records. Rows of which a value has a schema of its own come grouped, one group per
schema (:class:`.pieces.Rows`), so that the work per row is Arrow's. No source is known here: the connectors'
jobs bring rows in.
"""
