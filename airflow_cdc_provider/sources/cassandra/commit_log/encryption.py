"""Decrypt the sections of encrypted segments, with keys from a keystore (reference §3.3).

Each block of a section is encrypted separately, with the key that the header names and the header's IV::

    0    u32  length E of the cipher text
    4    u32  length of the plain text
    8    E    AES/CBC, PKCS#5 padding; decrypted:
                0  u32  length of the block's decompressed bytes
                4       LZ4 format of :mod:`.compression`, whatever ``commitlog_compression`` is

The driver opens the keystore. Executors receive the keys inside the pickled read function, like a snapshot's
connection, and need neither keystore nor password. No error or log line contains a key or a password.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.jceks import read_secret_keys
from airflow_cdc_provider.secrets import resolve_secret
from airflow_cdc_provider.sources.cassandra.commit_log.compression import SectionDecoder, lz4

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher

    from airflow_cdc_provider.sources.cassandra.commit_log.segments import Descriptor, SegmentBytes
    from airflow_cdc_provider.sources.cassandra.options import CassandraEncryption

_CIPHER: Final = "AES/CBC/PKCS5Padding"
_AES_BLOCK_BYTES: Final = 16
_AES_KEY_BYTES: Final = (16, 24, 32)
_BLOCK_HEADER_BYTES: Final = 8
_SECTIONS_TRIED: Final = 16


@dataclass(frozen=True)
class Keys:
    """Keys of a keystore. Picklable; its repr doesn't contain them.

    Args:
        keystore: Path of the keystore.
        opened: The keys' bytes by alias.
        closed: Aliases of keys that the password didn't decrypt.
        alias: The key for segments whose alias is missing from the keystore; empty for none.
    """

    keystore: str
    opened: Mapping[str, bytes] = field(repr=False)
    closed: Sequence[str] = ()
    alias: str = ""

    def find(self, alias: str, path: str) -> bytes:
        """Return the key of a segment that names it ``alias``.

        Raises:
            ConfigurationError: The keystore lacks the key, or it couldn't be decrypted.
        """
        key_alias = alias.lower()  # as JCEKS stores them
        if key_alias not in (*self.opened, *self.closed) and self.alias:
            key_alias = self.alias
        if key_alias not in self.opened:
            raise _no_key(self, alias, f"segment {path} needs key {alias}, which is not available")
        return self.opened[key_alias]


def open_keys(options: CassandraEncryption, connection: Mapping[str, Any]) -> Keys | None:
    """Open the declared keystore; None if none is declared.

    Args:
        options: The declaration's ``encryption``; passwords may be references
            (:mod:`airflow_cdc_provider.secrets`).
        connection: The Airflow connection's values: its extra has the passwords that the declaration leaves
            out.

    Raises:
        ConfigurationError: A password is missing or wrong, the file is not a keystore, or it lacks
            ``key_alias``.
    """
    if not options.keystore:
        return None
    extra = connection.get("extra") or {}
    passwords = [
        resolve_secret(getattr(options, name), f"source.encryption.{name}") or str(extra.get(name) or "")
        for name in ("keystore_password", "key_password")
    ]
    if not passwords[0]:
        raise ConfigurationError(
            f"the password of keystore {options.keystore} is missing",
            expected="option source.encryption.keystore_password",
            remedy="set it there, or as keystore_password in the extra of the Airflow connection",
        )
    found = read_secret_keys(options.keystore, passwords[0], passwords[1] or passwords[0])
    keys = Keys(options.keystore, found.opened, found.closed, options.key_alias.lower())
    if keys.alias and keys.alias not in keys.opened:
        raise _no_key(
            keys, keys.alias, f"key {options.key_alias} of source.encryption.key_alias is not available"
        )
    if not keys.opened:
        raise _no_key(keys, (*found.closed, "")[0], f"keystore {options.keystore} has no usable key")
    return keys


def _no_key(keys: Keys, alias: str, message: str) -> ConfigurationError:
    if alias.lower() in keys.closed:
        return ConfigurationError(
            message,
            expected="the key's password as source.encryption.key_password",
            found=f"a password that doesn't decrypt key {alias} of {keys.keystore}",
        )
    known = ", ".join(sorted((*keys.opened, *keys.closed))) or "none"
    return ConfigurationError(
        message,
        expected=f"a key of {keys.keystore}",
        found=f"keys {known}",
        remedy="set source.encryption.key_alias, or provide the keystore that the nodes use",
    )


def section_decrypter(descriptor: Descriptor, path: str, keys: Keys | None) -> SectionDecoder:
    """Return the decoder of an encrypted segment's sections.

    Raises:
        ConfigurationError: The key is missing, or the cipher is unsupported.
    """
    cipher = _cipher(descriptor, path, keys)

    def decode(body: bytes, length: int) -> bytes:
        blocks = []
        at = 0
        while length > 0:
            end, held, cipher_text = _block(body, at)
            plain = _unpad(_decrypt(cipher, cipher_text), held)
            block = int.from_bytes(plain[:4], "big")
            if not 0 < block <= length:
                raise ValueError("the block's length exceeds the rest of its section")
            blocks.append(lz4(plain[4:], block))
            length -= block
            at = end
        return b"".join(blocks)

    return decode


def check_key(source: SegmentBytes, descriptor: Descriptor, starts: Sequence[int], keys: Keys | None) -> None:
    """Verify that an encrypted segment's key is the one that it was written with.

    A block's first 16 bytes have its decompressed length twice, in both byte orders. This distinguishes a
    wrong key, which matches no block, from a corrupt block.

    Args:
        source: The segment.
        descriptor: Its header.
        starts: File offsets of its sections' bodies; the first few are tried.
        keys: The keys.

    Raises:
        ConfigurationError: The key is missing, or is not the one that the segment was written with.
    """
    cipher = _cipher(descriptor, source.path, keys)
    tried = 0
    for start in starts[:_SECTIONS_TRIED]:
        head = source.read(start, 4 + _BLOCK_HEADER_BYTES + _AES_BLOCK_BYTES)
        if not int.from_bytes(head[:4], "big") or len(head) < 4 + _BLOCK_HEADER_BYTES + _AES_BLOCK_BYTES:
            continue
        plain = _decrypt(cipher, head[-_AES_BLOCK_BYTES:])
        if plain[:4] == plain[7:3:-1]:
            return
        tried += 1
    if tried and keys is not None:
        raise ConfigurationError(
            f"segment {source.path} can't be decrypted",
            expected=f"key {_alias(descriptor)} as it was when the segment was written",
            found=f"another key with that alias in {keys.keystore}",
            remedy="set source.encryption.keystore to the keystore of the node that wrote it",
        )


def _alias(descriptor: Descriptor) -> str:
    return descriptor.parameters.get("encKeyAlias", "")


def _cipher(descriptor: Descriptor, path: str, keys: Keys | None) -> Cipher[Any]:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if descriptor.encryption != _CIPHER:
        raise ConfigurationError(f"segment {path} is encrypted by {descriptor.encryption}", expected=_CIPHER)
    if keys is None:
        raise ConfigurationError(
            f"segment {path} is encrypted with key {_alias(descriptor)}",
            expected="option source.encryption with the keystore that holds it",
            found="none",
            remedy="set its keystore and keystore_password to those of the nodes' "
            "transparent_data_encryption_options",
        )
    key = keys.find(_alias(descriptor), path)
    try:
        vector = bytes.fromhex(descriptor.parameters.get("encIV", ""))
    except ValueError:
        vector = b""
    if len(key) not in _AES_KEY_BYTES or len(vector) != _AES_BLOCK_BYTES:
        raise ConfigurationError(
            f"segment {path} can't be decrypted",
            expected="an AES key and an IV of 16 bytes",
            found=f"a key of {len(key)} bytes and an IV of {len(vector)}",
        )
    return Cipher(algorithms.AES(key), modes.CBC(vector))


def _decrypt(cipher: Cipher[Any], cipher_text: bytes) -> bytes:
    decryptor = cipher.decryptor()
    return decryptor.update(cipher_text) + decryptor.finalize()


def _block(body: bytes, at: int) -> tuple[int, int, bytes]:
    """Return a block's end, the length of its plain text, and its cipher text."""
    begin = at + _BLOCK_HEADER_BYTES
    length = int.from_bytes(body[at : at + 4], "big")
    held = int.from_bytes(body[at + 4 : begin], "big")
    if not 0 < length <= len(body) - begin or length % _AES_BLOCK_BYTES:
        raise ValueError("the block exceeds its section")
    return begin + length, held, body[begin : begin + length]


def _unpad(plain: bytes, held: int) -> bytes:
    padding = len(plain) - held
    if not 1 <= padding <= _AES_BLOCK_BYTES or plain[held:] != bytes([padding]) * padding:
        raise ValueError("the block's padding is invalid")
    return plain[:held]
