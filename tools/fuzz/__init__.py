"""Coverage-guided fuzzing of all readers of bytes from outside: see :mod:`.__main__`."""
