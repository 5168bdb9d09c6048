"""Java's keystores for nodes that demand TLS and a client's certificate, made with keytool."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

WORD = "word-of-the-stores"


def make_stores(folder: Path, *addresses: str) -> None:
    """Make stores of a node and a client, and trust stores of each other, as JKS, PKCS12 and JCEKS.

    Args:
        folder: Where: ``node.jks``, ``client.p12``, ``nodes.jceks`` (trusts nodes), ``clients.jks`` ...
        addresses: Further addresses of the node's certificate, in addition to 127.0.0.1.
    """
    names = ",".join(f"ip:{address}" for address in ("127.0.0.1", *addresses))
    for name in ("node", "client"):
        for kind in ("jks", "p12"):
            store = ["-keystore", str(folder / f"{name}.{kind}"), "-storepass", WORD]
            if kind == "jks":
                made = ["-genkeypair", "-alias", name, "-keyalg", "RSA", "-dname", f"CN={name}"]
                form = ["-ext", f"san={names}", "-validity", "2", "-storetype", "JKS", "-keypass", WORD]
                _keytool(*made, *form, *store)
                _keytool("-exportcert", "-alias", name, "-file", str(folder / f"{name}.der"), *store)
            else:
                source = ["-srckeystore", str(folder / f"{name}.jks"), "-srcstorepass", WORD]
                target = ["-destkeystore", str(folder / f"{name}.p12"), "-deststorepass", WORD]
                _keytool("-importkeystore", *source, *target, "-deststoretype", "PKCS12")
    for name, alias in (("nodes", "node"), ("clients", "client")):
        for kind, form_name in (("jks", "JKS"), ("p12", "PKCS12"), ("jceks", "JCEKS")):
            _keytool(
                *("-importcert", "-noprompt", "-alias", alias, "-file", str(folder / f"{alias}.der")),
                *("-keystore", str(folder / f"{name}.{kind}"), "-storepass", WORD, "-storetype", form_name),
            )


def pem_files(stores: Path, folder: Path) -> tuple[str, str, str]:
    """Write the client's key, its certificate and the node's certificate as PEM, and return the paths."""
    key, own, nodes = (str(folder / name) for name in ("key.pem", "own.pem", "nodes.pem"))
    client = ["openssl", "pkcs12", "-in", str(stores / "client.p12"), "-passin", f"pass:{WORD}", "-nodes"]
    subprocess.run([*client, "-nocerts", "-out", key], check=True, capture_output=True)
    subprocess.run([*client, "-nokeys", "-out", own], check=True, capture_output=True)
    der = ["openssl", "x509", "-inform", "DER", "-in", str(stores / "node.der"), "-out", nodes]
    subprocess.run(der, check=True, capture_output=True)
    return key, own, nodes


def demanding_certificates(folder: Path) -> dict[str, Any]:
    """Return ``client_encryption_options`` of a node that takes no client without a certificate."""
    return {
        "enabled": True,
        "optional": False,
        "require_client_auth": True,
        "keystore": str(folder / "node.jks"),
        "keystore_password": WORD,
        "truststore": str(folder / "clients.jks"),
        "truststore_password": WORD,
    }


def _keytool(*arguments: str) -> None:
    finished = subprocess.run(["keytool", *arguments], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
