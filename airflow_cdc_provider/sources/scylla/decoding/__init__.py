"""Log rows to contributions: what they say of rows, cell by cell."""
