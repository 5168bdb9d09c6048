"""Encrypts bytes as Cassandra does its commit log."""

from __future__ import annotations

import struct

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from tests.unit.sources.cassandra.recordings import FIXTURES

RECORDED = FIXTURES / "v7-encrypted"
KEYSTORE = str(RECORDED / "keystore.jceks")
KEY = bytes(range(16))
IV = bytes(range(100, 116))


def encrypt(plain: bytes, chunk_bytes: int = 65536, key: bytes = KEY) -> bytes:
    """Write a section's blocks as a node does."""
    out = b""
    for at in range(0, len(plain), chunk_bytes):
        part = plain[at : at + chunk_bytes]
        packed = struct.pack(">i", len(part)) + struct.pack("<i", len(part))
        packed += bytes(pa.Codec("lz4_raw").compress(part))
        pad = PKCS7(128).padder()
        encryptor = Cipher(algorithms.AES(key), modes.CBC(IV)).encryptor()
        cipher_text = encryptor.update(pad.update(packed) + pad.finalize())
        out += struct.pack(">ii", len(cipher_text), len(packed)) + cipher_text
    return out
