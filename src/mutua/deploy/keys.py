"""Keys and certificates of a deployment: its own authority, the server's certificate, one key pair per client."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from mutua.errors import InputError

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
NEEDS_FLOWER = "a deployment needs Flower; pip install 'mutua[flower]'"


class KeyPair(NamedTuple):
    """A private and a public key, each as a file's bytes."""

    private: bytes
    public: bytes


class Authority(NamedTuple):
    """The deployment's own certificate authority."""

    key: bytes
    certificate: bytes


def need_flower() -> None:
    """Refuse, in one line, to go on without the packages of a deployment."""
    try:
        import cryptography
        import flwr  # noqa: F401
    except ImportError:
        raise InputError(NEEDS_FLOWER) from None
    del cryptography


def client_keys() -> KeyPair:
    """A client's key pair, as Flower's SuperNodes sign with: P-384, in OpenSSH's form."""
    from cryptography.hazmat.primitives import serialization as to
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(to.Encoding.PEM, to.PrivateFormat.OpenSSH, to.NoEncryption())
    return KeyPair(private, key.public_key().public_bytes(to.Encoding.OpenSSH, to.PublicFormat.OpenSSH))


def public_key_of(private: bytes) -> bytes:
    """The public key, as a file's bytes, that belongs to a private one."""
    from cryptography.hazmat.primitives import serialization as to

    key = to.load_ssh_private_key(private, None)
    return bytes(key.public_key().public_bytes(to.Encoding.OpenSSH, to.PublicFormat.OpenSSH))


def registered_form(public: bytes) -> bytes:
    """A client's public key as Flower registers it and names a node by."""
    from cryptography.hazmat.primitives import serialization as to

    key: Any = to.load_ssh_public_key(public)
    return bytes(key.public_bytes(to.Encoding.PEM, to.PublicFormat.SubjectPublicKeyInfo))


def new_authority(name: str) -> Authority:
    """A certificate authority for this deployment alone."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"mutua deployment {name}"[:64])])
    made = _builder(who, who, key.public_key(), AUTHORITY_DAYS)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(_usage(certificates=True), critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Authority(_private(key), _pem(made.sign(key, hashes.SHA384())))


def server_certificate(authority: Authority, host: str, days: float = SERVER_DAYS) -> Authority:
    """A key and a certificate for the server under this name or address, and under this machine's own."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as to
    from cryptography.hazmat.primitives.asymmetric import ec

    signer: Any = to.load_pem_private_key(authority.key, None)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP384R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host[:64])])
    names = [_general_name(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    made = _builder(who, issuer.subject, key.public_key(), days)
    made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(_usage(certificates=False), critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    by: Any = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = made.add_extension(by, critical=False)
    return Authority(_private(key), _pem(made.sign(signer, hashes.SHA384())))


def expires(certificate: bytes) -> datetime:
    """When a certificate ends."""
    from cryptography import x509

    found: datetime = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return found


def _general_name(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return x509.DNSName(name)


def _builder(who: Any, issuer: Any, public: Any, days: float) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    begin = min(now - timedelta(hours=1), now + timedelta(days=days) - timedelta(hours=1))
    made = x509.CertificateBuilder().subject_name(who).issuer_name(issuer).public_key(public)
    made = made.serial_number(x509.random_serial_number())
    return made.not_valid_before(begin).not_valid_after(now + timedelta(days=days))


def _usage(*, certificates: bool) -> Any:
    from cryptography import x509

    names = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    names += ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    on = {"key_cert_sign", "crl_sign"} if certificates else {"digital_signature"}
    return x509.KeyUsage(**{name: name in on for name in names})


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as to

    return bytes(key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption()))


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as to

    return bytes(certificate.public_bytes(to.Encoding.PEM))
