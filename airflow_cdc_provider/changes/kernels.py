"""How kernels are compiled, and where their machine code is kept: the one place that says it.

A kernel is a function over arrays and numbers that Numba compiles when it is first called, which takes
seconds. Numba keeps the result on disk, but looks at the function's own file only, so a kernel would go on
with the old code of what it calls in another file. Therefore each file's kernels are kept in a folder named
by a hash over that file and all that it imports of this package: ``$XDG_CACHE_HOME/airflow-cdc-provider/
kernels/<hash>``, or in ``NUMBA_CACHE_DIR`` if that is set. Where neither can be written, the package's own
``__pycache__`` takes the place. Processes may share the folder, and so may installations of the same sources
in different places: Numba replaces files as a whole, and the place is not part of any name.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import numba
from numba.core.caching import UserProvidedCacheLocator

_PACKAGE: Final = Path(__file__).parents[1]
_IMPORT: Final = re.compile(rf"^\s*(?:from|import) ({_PACKAGE.name}[\w.]*)", re.MULTILINE)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that may make arrays."""
    return _compiled(function)


def walker(function: Callable[..., Any]) -> Any:
    """Compile a function that walks arrays and makes none, so it needs no reference counts.

    With them each call counts each array of its arguments up and down, which costs more than all the rest.
    What a walker needs to work in, its caller makes once; what it calls must be walkers too.
    """
    return _compiled(function, _nrt=False)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a walker into each of its callers.

    An array goes to a function as seven numbers or more, so tuples of arrays can cost more to hand on than
    the function does.
    """
    return _compiled(function, _nrt=False, forceinline=True)


class KernelLocator(UserProvidedCacheLocator):
    """Where Numba keeps a file's kernels: in ``numba.config.CACHE_DIR``, wherever the file itself lies."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """Return the folder's name; by default it is a hash of the path of the sources."""
        return Path(py_file).stem


@cache
def kernel_folder(file: Path) -> Path | None:
    """Return where the machine code of a file's kernels is kept, None if it can be kept nowhere."""
    name = source_hash(file)
    for folder in _cache_folders():
        if _can_write(folder / name):
            return folder / name
    warnings.warn(
        f"compiled kernels can be kept in none of {[*map(str, _cache_folders())]}: every process will "
        "compile them anew; set NUMBA_CACHE_DIR to a folder that can be written",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


@cache
def source_hash(file: Path) -> str:
    """Hash a module together with all modules of this package that it imports, and Numba's version.

    Names of modules count: what Numba keeps names the modules of the types that a kernel takes.
    """
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=12)
    for source in sorted(_with_imports(file)):
        inside = source.is_relative_to(_PACKAGE)
        digest.update(str(source.relative_to(_PACKAGE) if inside else source.name).encode())
        digest.update(_read(source))
    return digest.hexdigest()


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    folder = kernel_folder(Path(function.__code__.co_filename))
    with _numba_keeps_in(folder):
        return numba.njit(cache=folder is not None, nogil=True, **options)(function)


@contextmanager
def _numba_keeps_in(folder: Path | None) -> Iterator[None]:
    """Set Numba's folder, which it looks up while it decorates; others in the process keep theirs."""
    config = numba.config
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    if folder is not None:
        config.CACHE_DIR = str(folder)
        config.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelLocator.__name__}"
    try:
        yield
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before


@cache
def _cache_folders() -> tuple[Path, ...]:
    if numba.config.CACHE_DIR:
        return (Path(numba.config.CACHE_DIR),)
    own = _PACKAGE / "__pycache__" / "kernels"
    try:
        users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return (own,)
    return users / "airflow-cdc-provider" / "kernels", own


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _with_imports(file: Path) -> set[Path]:
    found = {file}
    waiting = [file]
    while waiting:
        for imported in _imports(waiting.pop()) - found:
            found.add(imported)
            waiting.append(imported)
    return found


@cache
def _imports(file: Path) -> set[Path]:
    """Return the files of this package that a module imports; of a package, all that are in it."""
    found: set[Path] = set()
    for name in set(_IMPORT.findall(_read(file).decode())):
        place = _PACKAGE.parent.joinpath(*name.split("."))
        found.update([place.with_suffix(".py")] if place.with_suffix(".py").is_file() else place.glob("*.py"))
    return found


@cache
def _read(file: Path) -> bytes:
    return file.read_bytes()
