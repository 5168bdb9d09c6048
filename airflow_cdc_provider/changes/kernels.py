"""How kernels are compiled: the one place that says it.

A kernel is a function over arrays and numbers that Numba compiles to machine code when it is first called.
"""

from __future__ import annotations

from typing import Any, Final

from numba import njit

kernel: Final[Any] = njit(cache=True, nogil=True)
"""Compiles a function that may make arrays."""

walker: Final[Any] = njit(cache=True, nogil=True, _nrt=False)
"""Compiles a function that walks arrays and makes none, so it needs no reference counts. With them each call
counts each array of its arguments up and down, which costs more than all the rest; and tuples of arrays are
counted whole. What a walker needs to work in, its caller makes once; what it calls must be walkers too."""

inlined: Final[Any] = njit(cache=True, nogil=True, _nrt=False, forceinline=True)
"""Compiles a walker into each of its callers. An array goes to a function as seven numbers or more, so tuples
of arrays can cost more to hand on than the function does."""
