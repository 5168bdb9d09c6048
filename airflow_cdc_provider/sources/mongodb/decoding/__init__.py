"""Decoding of changes, and kernels over the documents in them."""
