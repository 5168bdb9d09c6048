"""Compilation of kernels, and the cache of their machine code.

A kernel is a function over arrays and numbers that Numba compiles on its first call, which takes seconds.
Numba caches the result on disk, but checks only the function's own file for changes, so a kernel would keep
the old code of functions that it calls in other files. Therefore each file's kernels are cached in a folder
named by a hash of that file and all its imports from this package:
``$XDG_CACHE_HOME/airflow-cdc-provider/kernels/<hash>``, or in ``NUMBA_CACHE_DIR`` if set.

Numba loads pickles, which execute what their writer wants. So only a folder in which no other user can change
anything is used (:mod:`airflow_cdc_provider.trusted_paths`), and only if all its files are this user's. If it
isn't, the package's ``__pycache__`` is used, or a folder of this user in ``/tmp``, under the same rule.

Processes of a user may share the folder, and so may installations of the same sources in different folders:
Numba replaces whole files, and no file name contains the path of the
sources. While one process compiles a kernel, the others that need it wait and load what it saved: else all
Python workers of an executor would compile all kernels of their first batch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

import numba
import numpy as np
import numpy.typing as npt
from numba.core.caching import FunctionCache, UserProvidedCacheLocator

from airflow_cdc_provider.trusted_paths import changeable_by_others, changeable_inside, replaceable_by_others

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Int = Any
"""A number in a kernel. Numba infers int64; mypy would infer int and NumPy scalars, which don't mix."""

_PACKAGE: Final = Path(__file__).parents[1]
_IMPORT: Final = re.compile(rf"^[ \t]*(?:from|import) ({_PACKAGE.name}[\w.]*)", re.MULTILINE)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that may create arrays."""
    return _compiled(function)


def walker(function: Callable[..., Any]) -> Any:
    """Compile a function that reads and writes arrays but creates none, so it needs no reference counts.

    With reference counts, each call increments and decrements them for each array argument, which costs more
    than the work itself. The caller of a walker allocates its buffers; functions that it calls must be
    walkers.
    """
    return _compiled(function, _nrt=False)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a walker into each of its callers.

    An array is passed as seven numbers or more, so passing tuples of arrays can cost more than the function
    itself.
    """
    return _compiled(function, _nrt=False, forceinline=True)


class KernelLocator(UserProvidedCacheLocator):
    """Locates a file's cached kernels in ``numba.config.CACHE_DIR``, whatever the file's own path."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """Return the folder's name; by default it is a hash of the path of the sources."""
        return Path(py_file).stem


class SharedCache(FunctionCache):
    """A kernel's cache, in which one process at a time compiles the kernel."""

    _lock: IO[bytes] | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code for argument types; None if this process is to compile it."""
        found = super().load_overload(sig, target_context)
        if found is None and self._lock is None:
            self._lock = _locked(Path(self.cache_path, f"{self._py_func.__qualname__}.lock"))
            found = super().load_overload(sig, target_context)
            if found is not None:
                self._unlock()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save what this process has compiled."""
        super().save_overload(sig, data)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _locked(path: Path) -> IO[bytes] | None:
    """Open a file and lock it, until it is closed; None on a file system without locks."""
    try:
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return None
    return file


@cache
def kernel_folder(file: Path) -> Path | None:
    """Return the cache folder of a file's kernels, None if no folder is writable and trusted."""
    base = _cache_folder()
    if base is None:
        return None
    folder = base / source_hash(file)
    if reason := _unusable(folder):
        _warn(f"the kernels of {file.name} can't be cached: {reason}. Remove {folder}")
        return None
    return folder


@cache
def source_hash(file: Path) -> str:
    """Hash a module together with all modules of this package that it imports, and Numba's version.

    The hash includes names of modules: Numba's cache refers to the modules of a kernel's argument types.
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
        dispatcher = numba.njit(nogil=True, **options)(function)
        if folder is not None:
            dispatcher._cache = SharedCache(function)  # as its enable_caching() does with Numba's own
        return dispatcher


@contextmanager
def _numba_keeps_in(folder: Path | None) -> Iterator[None]:
    """Set Numba's cache folder, which it reads when it decorates; other code in the process keeps its own."""
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
def _cache_folder() -> Path | None:
    """Return the first folder that can be written and that no other user can change."""
    reasons = []
    for folder in _cache_folders():
        reason = _unusable(folder, files=False) or replaceable_by_others(folder)
        if not reason:
            return folder
        reasons.append(reason)
    _warn(
        f"compiled kernels can't be cached: {'; '.join(reasons)}. Every process will compile them again; "
        "set NUMBA_CACHE_DIR to a folder that only this user may write to"
    )
    return None


def _cache_folders() -> Iterator[Path]:
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR)
    else:
        with suppress(RuntimeError):  # a user without a home
            users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            yield users / "airflow-cdc-provider" / "kernels"
        yield _PACKAGE / "__pycache__" / "kernels"
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108  # a folder of this user, or none
    yield temporary / f"airflow-cdc-provider-{os.geteuid()}" / "kernels"


def _unusable(folder: Path, *, files: bool = True) -> str:
    """Return why a folder, which is created, can't be used; empty if it can."""
    try:
        for place in [*reversed(folder.parents), folder]:
            if not place.exists():
                place.mkdir(0o700, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        status = folder.lstat()
        if stat.S_ISLNK(status.st_mode):
            return f"{folder} is a link"
        if reason := changeable_by_others(status):
            return f"{folder}: {reason}"
        return changeable_inside(folder) if files else ""
    except OSError as error:
        return f"{folder}: {error.strerror}"


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _with_imports(file: Path) -> set[Path]:
    found = {file}
    pending = [file]
    while pending:
        for imported in _imports(pending.pop()) - found:
            found.add(imported)
            pending.append(imported)
    return found


@cache
def _imports(file: Path) -> set[Path]:
    """Return the files of this package that a module imports; for a package, all its files."""
    found: set[Path] = set()
    for name in set(_IMPORT.findall(_read(file).decode())):
        path = _PACKAGE.parent.joinpath(*name.split("."))
        found.update([path.with_suffix(".py")] if path.with_suffix(".py").is_file() else path.glob("*.py"))
    return found


@cache
def _read(file: Path) -> bytes:
    return file.read_bytes()
