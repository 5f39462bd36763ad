"""Certificates for an engine that listens on TCP: an authority, the engine's certificate and a client's."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey
_KEY_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
SIGNS_CERTIFICATES = x509.KeyUsage(**{use: use in ("key_cert_sign", "crl_sign") for use in _KEY_USES})


class Certificates(NamedTuple):
    """Files of one folder, named as DOCKER_CERT_PATH expects them."""

    ca: Path
    cert: Path
    key: Path
    server_cert: Path
    server_key: Path

    @property
    def folder(self) -> Path:
        return self.ca.parent


def make_certificates(folder: Path, names: tuple[str, ...] = ("localhost",)) -> Certificates:
    """Create certificates that are valid for 127.0.0.1 and these names, for a day."""
    folder.mkdir(parents=True, exist_ok=True)
    file_names = ("ca.pem", "cert.pem", "key.pem", "server-cert.pem", "server-key.pem")
    files = Certificates(*(folder / name for name in file_names))
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate(
        "gpu-flows tests",
        authority_key,
        None,
        authority_key,
        [(x509.BasicConstraints(ca=True, path_length=0), True), (SIGNS_CERTIFICATES, True)],
    )
    issuer = authority.subject
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *map(x509.DNSName, names)]

    def issue(name: str, usage: x509.ObjectIdentifier, certificate: Path, private: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.ExtendedKeyUsage([usage]), False),
            (x509.SubjectAlternativeName(addresses), False),
        ]
        _write(certificate, _certificate(name, key, issuer, authority_key, extensions))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        private.chmod(0o600)

    _write(files.ca, authority)
    issue("engine", ExtendedKeyUsageOID.SERVER_AUTH, files.server_cert, files.server_key)
    issue("client", ExtendedKeyUsageOID.CLIENT_AUTH, files.cert, files.key)
    return files


def _certificate(
    name: str,
    key: Key,
    issuer: x509.Name | None,
    signed_with: Key,
    extensions: list[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signed_with.public_key()), critical=False
        )
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signed_with, hashes.SHA256())


def _write(file: Path, certificate: x509.Certificate) -> None:
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
