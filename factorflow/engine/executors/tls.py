"""Certificates for a scheduler behind TLS, looked at before they are used: what is wrong is named."""

from __future__ import annotations

import os
import socket
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

from distributed import Security

from factorflow.errors import InputError
from factorflow.settings.clusters import TLS

__all__ = ["check_peer", "security_of"]

EXPIRED = {9, 10}
"""Codes of OpenSSL for certificates that are not valid yet, or no longer."""

ISSUE = "Ask whoever runs the cluster for new ones, or issue them anew."


def security_of(files: TLS) -> Security:
    """Return what Dask needs for an encrypted connection, certificates checked.

    Raises
    ------
    InputError
        Naming the file that is missing, is no certificate or key, has expired, or does not fit the others.
    """
    _check_files(files)
    ca, certificate, key = (_path(name) for name in (files.ca, files.certificate, files.key))
    return Security(require_encryption=True, tls_ca_file=ca, tls_client_cert=certificate, tls_client_key=key)


def _path(name: str) -> str:
    return os.path.abspath(Path(name).expanduser())


def _check_files(files: TLS) -> None:
    """Let OpenSSL judge the certificate by the authority, as the scheduler is going to."""
    for name in ("ca", "certificate", "key"):
        path = _path(getattr(files, name))
        try:
            Path(path).read_bytes()
        except OSError as error:
            expected = f"a file in PEM format that can be read ({error.strerror})"
            raise InputError(f"tls.{name}", path, expected, "Correct it, or its permissions.") from error
    judge, shown = _contexts(files)
    judge.verify_mode = ssl.CERT_REQUIRED
    for authority in judge.get_ca_certs():
        if ssl.cert_time_to_seconds(str(authority["notAfter"])) < time.time():
            expected = f"an authority that is valid; this one has expired on {authority['notAfter']}"
            raise InputError("tls.ca", _path(files.ca), expected, ISSUE)
    try:
        _shake_hands(judge, shown)
    except ssl.SSLCertVerificationError as error:
        path = _path(files.certificate)
        if error.verify_code in EXPIRED:
            expected = f"a certificate that is valid now: {error.verify_message}"
            raise InputError("tls.certificate", path, expected, ISSUE) from error
        expected = f"a certificate that {_path(files.ca)} signed: {error.verify_message}"
        remedy = "Give the authority (ca) and the certificate of the same cluster."
        raise InputError("tls.certificate", path, expected, remedy) from error


def _contexts(files: TLS) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a server's and a client's context with the files."""
    made = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            context.load_verify_locations(_path(files.ca))
        except ssl.SSLError as error:
            expected = f"a certificate in PEM format ({error.reason or error})"
            raise InputError("tls.ca", _path(files.ca), expected, "Correct the path.") from error
        try:
            context.load_cert_chain(_path(files.certificate), _path(files.key))
        except ssl.SSLError as error:
            given = f"{_path(files.certificate)} and {_path(files.key)}"
            expected = f"a certificate and its own key, in PEM format ({error.reason or error})"
            raise InputError("tls.certificate, tls.key", given, expected, "Correct the paths.") from error
        made.append(context)
    return made[0], made[1]


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Let two contexts meet in memory; raises what the server finds wrong with the client."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)


def check_peer(address: str, files: TLS, seconds: float) -> None:
    """Look whether the scheduler at an address is one of the same authority; that none answers is no matter.

    Raises
    ------
    InputError
        If it has a certificate of another authority, an expired one, or none.
    """
    _, client = _contexts(files)
    client.verify_mode = ssl.CERT_REQUIRED
    split = urlsplit(address)
    try:
        with (
            socket.create_connection((split.hostname or "", split.port or 8786), timeout=seconds) as plain,
            client.wrap_socket(plain) as connection,
        ):
            connection.recv(1)  # a client that is refused is told so after the handshake
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in EXPIRED:
            expected = f"a scheduler whose certificate is valid now: {error.verify_message}"
            raise InputError("address", address, expected, f"{ISSUE} They are the scheduler's.") from error
        expected = f"a scheduler whose certificate {_path(files.ca)} signed: {error.verify_message}"
        raise InputError("tls.ca", _path(files.ca), expected, f"Give the authority of {address}.") from error
    except ssl.SSLError as error:
        reason = str(error.reason or error).lower().replace("_", " ")
        if "alert" in reason:
            expected = f"a certificate that the scheduler at {address} accepts ({reason})"
            remedy = "Give one that its authority signed and that has not expired."
            raise InputError("tls.certificate", _path(files.certificate), expected, remedy) from error
        expected = f"a scheduler that speaks TLS ({reason})"
        remedy = "Use tcp:// for one that does not, or start it with --tls-ca-file, --tls-cert and --tls-key."
        raise InputError("address", address, expected, remedy) from error
    except OSError:  # connecting says so
        return
