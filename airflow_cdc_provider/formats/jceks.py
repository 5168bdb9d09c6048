"""Read secret keys from a JCEKS keystore, the type in which Cassandra stores the keys of its commit log.

::

    0    u32  0xCECECECE
    4    u32  version 2
    8    u32  number of entries; each: u32 tag, its alias (u16 length, text), i64 time of creation in ms, then
              tag 1, private key   u32 length, bytes; u32 number of certificates
              tag 2, certificate   its type (u16 length, text), u32 length, bytes
              tag 3, secret key    a serialized ``javax.crypto.SealedObject``
    end  20   SHA-1 over the password in UTF-16, ``Mighty Aphrodite``, and all before

A sealed object is another serialized object, the key, encrypted with triple DES; its key and IV are derived
from the key's password, a salt and a number of MD5 rounds (Java's ``PBEWithMD5AndTripleDES``). The
serialization is Java's Object Serialization Stream Protocol; this module parses the subset that keys use, and
never instantiates or runs any class.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from airflow_cdc_provider.exceptions import ConfigurationError

_MAGIC: Final = 0xCECECECE
_MAGIC_JKS: Final = 0xFEEDFEED
_PRIVATE, _CERTIFICATE, _SECRET = 1, 2, 3
_DIGEST_BYTES: Final = 20
_WHITENING: Final = b"Mighty Aphrodite"
_MOST_ROUNDS: Final = 5_000_000


@dataclass(frozen=True)
class SecretKeys:
    """The secret keys of a keystore.

    Args:
        opened: The bytes of each secret key that the password decrypts, by alias.
        closed: Aliases of the others.
    """

    opened: Mapping[str, bytes] = field(repr=False)
    closed: tuple[str, ...]


def read_secret_keys(path: str, password: str, key_password: str) -> SecretKeys:
    """Read all secret keys of a JCEKS file; each takes up to 0.2 s, by design of the format.

    Args:
        path: The file.
        password: Password of the keystore.
        key_password: Password of the keys.

    Returns:
        The keys.

    Raises:
        ConfigurationError: The file can't be read, has another type, or the password is wrong.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"keystore {path} can't be read", found=str(error.strerror)) from error
    magic = int.from_bytes(data[:4], "big")
    if magic != _MAGIC:
        raise ConfigurationError(
            f"{path} is not a JCEKS keystore",
            expected="the keystore with the commit log's key, of store_type JCEKS",
            found="a JKS keystore, which can't have secret keys"
            if magic == _MAGIC_JKS
            else "probably PKCS12"
            if data[:1] == b"\x30"
            else "something else",
            remedy="keytool -importkeystore -srckeystore FILE -destkeystore NEW -deststoretype JCEKS",
        )
    body = data[:-_DIGEST_BYTES]
    digest = hashlib.sha1(password.encode("utf-16-be") + _WHITENING + body, usedforsecurity=False)
    if digest.digest() != data[-_DIGEST_BYTES:]:
        raise ConfigurationError(
            f"keystore {path} can't be opened",
            expected="its password as source.encryption.keystore_password",
            found="another password, or a corrupt file",
        )
    opened: dict[str, bytes] = {}
    closed: list[str] = []
    try:
        for entry in read_entries(body):
            if entry.sealed is None:
                continue
            key = _unseal(entry.sealed, key_password)
            if key:
                opened[entry.alias] = key
            else:
                closed.append(entry.alias)
    except (Malformed, RecursionError) as error:
        raise ConfigurationError(f"keystore {path} can't be read", found=str(error)) from error
    return SecretKeys(opened, tuple(closed))


class Malformed(Exception):
    """The bytes violate the format."""


class Entry(NamedTuple):
    """An entry of a keystore, JCEKS or JKS.

    Args:
        alias: Its name.
        private_key: A private key in encrypted form; empty for none.
        certificates: The key's certificate chain, its own first; or the certificate of the entry.
        sealed: Fields of a secret key's sealed object.
    """

    alias: str
    private_key: bytes = b""
    certificates: tuple[bytes, ...] = ()
    sealed: Mapping[str, Any] | None = None


def read_entries(body: bytes) -> Iterator[Entry]:
    """Yield the entries of a keystore in the layout above, with any magic number.

    Args:
        body: The file without its digest.

    Yields:
        The entries.

    Raises:
        Malformed: The file has another format, or is corrupt.
    """
    reader = JavaReader(body, 4)
    version, count = reader.number(4), reader.number(4)
    if version not in (1, 2):
        raise Malformed(f"version {version}")
    for _ in range(count):
        tag, alias = reader.number(4), reader.text()
        reader.take(8)
        if tag == _PRIVATE:
            key = reader.take(reader.number(4))
            chain = tuple(_certificate(reader, version) for _ in range(reader.number(4)))
            yield Entry(alias, private_key=key, certificates=chain)
        elif tag == _CERTIFICATE:
            yield Entry(alias, certificates=(_certificate(reader, version),))
        elif tag == _SECRET:
            sealed = reader.stream()
            if not isinstance(sealed, dict):
                raise Malformed(f"secret key {alias} is not an object")
            yield Entry(alias, sealed=sealed)
        else:
            raise Malformed(f"entry {alias} has unknown type {tag}")


def _certificate(reader: JavaReader, version: int) -> bytes:
    if version > 1:
        reader.text()
    return reader.take(reader.number(4))


def _unseal(sealed: Mapping[str, Any], password: str) -> bytes:
    """Return a key's bytes, empty if the password doesn't decrypt it."""
    from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
    from cryptography.hazmat.primitives.ciphers import Cipher, modes

    algorithm = sealed.get("sealAlg")
    if algorithm != "PBEWithMD5AndTripleDES":
        raise Malformed(f"a key is sealed with {algorithm}")
    content, parameters = sealed.get("encryptedContent"), sealed.get("encodedParams")
    if not isinstance(content, bytes) or not isinstance(parameters, bytes) or not content or len(content) % 8:
        raise Malformed("a sealed key is incomplete")
    secret = _derive(password, *_salt_and_rounds(parameters))
    decryptor = Cipher(TripleDES(secret[:24]), modes.CBC(secret[24:])).decryptor()
    plain = decryptor.update(content) + decryptor.finalize()
    padding = plain[-1]
    if not 1 <= padding <= 8 or plain[-padding:] != bytes([padding]) * padding:
        return b""
    try:
        key = JavaReader(plain[:-padding], 0).stream()
    except Malformed:
        return b""  # one in 256 wrong passwords has a valid padding by chance
    # The field is key in SecretKeySpec, and encoded in KeyRep, the serialized form of other classes.
    found = key.get("key") or key.get("encoded") if isinstance(key, dict) else None
    if not isinstance(found, bytes):
        raise Malformed("a key without bytes")
    return found


def _salt_and_rounds(parameters: bytes) -> tuple[bytes, int]:
    """Read DER: SEQUENCE of OCTET STRING (8 bytes) and INTEGER."""
    if parameters[:1] != b"\x30" or parameters[2:4] != b"\x04\x08" or parameters[12:13] != b"\x02":
        raise Malformed("a key's salt is malformed")
    rounds = int.from_bytes(parameters[14 : 14 + parameters[13]], "big")
    if not 0 < rounds <= _MOST_ROUNDS:
        raise Malformed(f"a key has {rounds} rounds")
    return parameters[4:12], rounds


def _derive(password: str, salt: bytes, rounds: int) -> bytes:
    """Derive 24 bytes of key and 8 of IV like Java's PBES1: half of them from each half of the salt."""
    first, second = salt[:4], salt[4:]
    if first == second:
        first = first[::-1]
    secret = bytes(byte & 0x7F for byte in password.encode("utf-16-be")[1::2])
    out = b""
    for state in (first, second):
        for _ in range(rounds):
            state = hashlib.md5(state + secret, usedforsecurity=False).digest()  # noqa: PLW2901
        out += state
    return out


_STREAM: Final = b"\xac\xed\x00\x05"
_NULL, _REFERENCE, _CLASS, _OBJECT, _STRING, _ARRAY = 0x70, 0x71, 0x72, 0x73, 0x74, 0x75
_BLOCK, _END, _ENUM = 0x77, 0x78, 0x7E
_WRITES_MORE, _SERIALIZABLE = 1, 2
_FIRST_HANDLE: Final = 0x7E0000
_PRIMITIVES: Final = {"B": ">b", "C": ">H", "D": ">d", "F": ">f", "I": ">i", "J": ">q", "S": ">h", "Z": ">?"}


@dataclass(frozen=True)
class _Class:
    """A class descriptor of a stream: its fields as (type, name), and the class that it extends."""

    name: str
    flags: int
    fields: tuple[tuple[str, str], ...]
    base: _Class | None


class JavaReader:
    """Reads Java's ``DataOutput`` and serialized objects: an object becomes a dict of its fields."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._handles: list[Any] = []

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise Malformed(f"truncated at byte {self._at}")
        found = self._data[self._at : end]
        self._at = end
        return found

    def number(self, length: int) -> int:
        """Return the next unsigned number."""
        return int.from_bytes(self.take(length), "big")

    def text(self) -> str:
        """Return the next text."""
        return self.take(self.number(2)).decode(errors="replace")

    def stream(self) -> Any:
        """Return the object of a stream that starts here."""
        if self.take(4) != _STREAM:
            raise Malformed("expected a serialized object")
        self._handles = []
        return self._content()

    def _content(self) -> Any:
        tag = self.number(1)
        if tag == _NULL:
            return None
        if tag == _REFERENCE:
            handle = self.number(4) - _FIRST_HANDLE
            if not 0 <= handle < len(self._handles):
                raise Malformed("a dangling reference")
            return self._handles[handle]
        if tag == _CLASS:
            return self._class()
        if tag == _OBJECT:
            return self._object()
        if tag == _STRING:
            self._handles.append(found := self.text())
            return found
        if tag == _ARRAY:
            return self._array()
        if tag == _ENUM:
            return self._enum()
        if tag == _BLOCK:
            return self.take(self.number(1))
        raise Malformed(f"unexpected element {tag:#x} of a serialized object")

    def _class(self) -> _Class:
        name, _ = self.text(), self.take(8)
        handle = len(self._handles)
        self._handles.append(None)
        flags = self.number(1)
        fields = []
        for _ in range(self.number(2)):
            kind, field = chr(self.number(1)), self.text()
            if kind in "[L":
                self._content()
            elif kind not in _PRIMITIVES:
                raise Malformed(f"field {field} has an unknown type")
            fields.append((kind, field))
        self._skip_to_end()
        base = self._class_or_null()
        self._handles[handle] = found = _Class(name, flags, tuple(fields), base)
        return found

    def _class_or_null(self) -> _Class | None:
        found = self._content()
        if found is not None and not isinstance(found, _Class):
            raise Malformed("expected a class descriptor")
        return found

    def _object(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        described = self._class_or_null()
        self._handles.append(values)
        hierarchy = []
        while described is not None:
            hierarchy.append(described)
            described = described.base
        for one in reversed(hierarchy):
            if one.flags & 0xF not in (_SERIALIZABLE, _SERIALIZABLE | _WRITES_MORE):
                raise Malformed(f"class {one.name} has a custom serialization")
            for kind, name in one.fields:
                values[name] = self._content() if kind in "[L" else self._primitive(kind)
            if one.flags & _WRITES_MORE:
                self._skip_to_end()
        return values

    def _enum(self) -> Any:
        self._class_or_null()
        handle = len(self._handles)
        self._handles.append(None)
        self._handles[handle] = found = self._content()
        return found

    def _array(self) -> Any:
        described = self._class_or_null()
        handle = len(self._handles)
        self._handles.append(None)
        size = self.number(4)
        kind = described.name[1:2] if described else ""
        found: Any
        if kind == "B":
            found = self.take(size)
        elif kind in _PRIMITIVES:
            found = [self._primitive(kind) for _ in range(size)]
        else:
            found = [self._content() for _ in range(size)]
        self._handles[handle] = found
        return found

    def _primitive(self, kind: str) -> Any:
        form = _PRIMITIVES[kind]
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def _skip_to_end(self) -> None:
        while self._data[self._at : self._at + 1] != bytes([_END]):
            self._content()
        self._at += 1
