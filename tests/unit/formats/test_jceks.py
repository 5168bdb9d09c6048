"""Keys from keystores that Java's keytool created.

``keystores/many.jceks``: a private key, a certificate, and secret keys ``short`` and ``long`` (AES of 128 and
256 bits) and ``old`` (DESede) with one password, ``other`` with a second. ``one.p12`` is of another kind.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats import jceks
from airflow_cdc_provider.formats.jceks import read_secret_keys
from tests.unit.sources.cassandra.keystores import KEYSTORES, MANY


def test_secret_keys_are_the_bytes_that_java_gives() -> None:
    found = read_secret_keys(MANY, "outer-word", "inner-word")
    assert {alias: key.hex() for alias, key in found.opened.items()} == {
        "short": "75864fe4f81930fed150f3a2dfe3a189",
        "long": "3549f0959cc9126b516369d9d323d157ca40a4ba2a9063f64857977c6cfd30a5",
        "old": "d567fe5137252acb7325c85761647319945210a429ec9e10",
    }
    assert found.closed == ("other",)
    assert list(read_secret_keys(MANY, "outer-word", "third-word").opened) == ["other"]


def test_a_salt_of_equal_halves_is_treated_as_java_does() -> None:
    secret = jceks._derive("word", bytes((1, 2, 3, 4) * 2), 1000)
    encryptor = Cipher(TripleDES(secret[:24]), modes.CBC(secret[24:])).encryptor()
    # By PBEWithMD5AndTripleDES of OpenJDK 8, 11 and 17.
    expected = "dc4e1aa3e2ef3245f85cea0e08070bac8e8020d097f4e7d8"
    assert (encryptor.update(b"sixteen bytes!!!" + bytes([8] * 8))).hex() == expected


@pytest.mark.parametrize(
    ("path", "password", "message"),
    [
        (MANY, "outer-wort", "can't be opened.*keystore_password.*another password"),
        (str(KEYSTORES / "one.p12"), "outer-word", "not a JCEKS keystore.*PKCS12.*keytool -importkeystore"),
        (str(KEYSTORES / "none"), "outer-word", "can't be read: found No such file"),
        (__file__, "outer-word", "not a JCEKS keystore.*something else"),
    ],
)
def test_other_files_and_wrong_passwords_are_rejected(path: str, password: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_secret_keys(path, password, password)
    assert password not in str(raised.value)


def test_a_keystore_with_any_byte_changed_is_rejected(tmp_path: Path) -> None:
    sound = Path(MANY).read_bytes()
    rng = random.Random(4)
    for _ in range(50):
        data = bytearray(sound)
        data[rng.randrange(4, len(data))] ^= 1 << rng.randrange(8)
        (tmp_path / "k").write_bytes(data)
        with pytest.raises(ConfigurationError, match="another password, or a corrupt file"):
            read_secret_keys(str(tmp_path / "k"), "outer-word", "inner-word")


def test_a_keystore_signed_over_nonsense_is_rejected_with_a_reason(tmp_path: Path) -> None:
    sound = Path(MANY).read_bytes()[:-20]
    rng = random.Random(5)
    refused = 0
    for _ in range(60):
        data = bytearray(sound)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(4, len(data))] = rng.randrange(256)
        body = bytes(data[: rng.choice([len(data), rng.randrange(4, len(data))])])
        signed = "outer-word".encode("utf-16-be") + b"Mighty Aphrodite" + body
        (tmp_path / "k").write_bytes(body + hashlib.sha1(signed, usedforsecurity=False).digest())
        try:
            read_secret_keys(str(tmp_path / "k"), "outer-word", "no-such-word")
        except ConfigurationError:
            refused += 1
    assert refused > 40
