"""Formats that belong to no source, as kernels over bytes: Arrow buffers, Protobuf, text of numbers."""
