"""From payloads to contributions: what the decoding of all CQL databases shares."""
