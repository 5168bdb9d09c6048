"""Kernels as the plain Python that they are written in: every access checked, every line seen by a tracer.

Compiled, a kernel that reads outside its arrays reads what lies there; in Python a negative index counts from
the end. Here both are :class:`OutsideArray`. Numbers behave as in a compiled kernel: what comes out of an
array of small numbers has 64 bits, and 64 bits wrap around.

Call :func:`use_plain_kernels` before anything of the package is imported but :mod:`~.formats.kernels`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from airflow_cdc_provider.formats import kernels


class OutsideArray(AssertionError):
    """A kernel would have read or written what is not its own. Nothing catches it for something else."""


class Checked(np.ndarray):
    """An array whose elements are found from its beginning alone."""

    def __getitem__(self, index: Any) -> Any:
        _refuse_negative(index)
        try:
            value = super().__getitem__(index)
        except IndexError as error:
            raise OutsideArray(str(error)) from error
        if isinstance(value, np.integer) and not isinstance(value, np.uint64):
            return np.int64(value)
        return value

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    def __setitem__(self, index: Any, value: Any) -> None:
        _refuse_negative(index)
        try:
            super().__setitem__(index, value)
        except IndexError as error:
            raise OutsideArray(str(error)) from error


def use_plain_kernels() -> None:
    """Have kernels that are decorated from now on run as Python."""
    np.seterr(over="ignore")
    kernels._compiled = _checking


def _refuse_negative(index: Any) -> None:
    if type(index) is np.int64 or type(index) is int:
        if index < 0:
            raise OutsideArray(f"index {index} is before the array")
        return
    for part in index if isinstance(index, tuple) else (index,):
        if not isinstance(part, slice | np.ndarray) and operator.index(part) < 0:
            raise OutsideArray(f"index {part} is before the array")


_inside = False


def _checking(function: Callable[..., Any], **_: Any) -> Any:
    """Check the arrays that a kernel is given; those that it hands on are checked then."""

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        global _inside  # noqa: PLW0603  # kernels call each other, and nothing else
        if _inside:
            return function(*arguments)
        _inside = True
        try:
            return function(*map(_checked, arguments))
        finally:
            _inside = False

    return run


def _checked(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.view(Checked)
    if isinstance(argument, tuple) and hasattr(argument, "_fields"):
        return type(argument)(*map(_checked, argument))
    return np.int64(argument) if type(argument) is int else argument
