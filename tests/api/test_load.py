"""`load`: a shared posterior from a folder, a .zip file and URLs; verified, and kept in the cache."""

from __future__ import annotations

import re
import shutil
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from given_posterior import given_family, make_given
from typer.testing import CliRunner

import factorflow as ff
from factorflow.api import sharing
from factorflow.cli import app
from factorflow.errors import InputError

__all__ = ["given_family", "make_given"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FACTORFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "posteriors"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The folder that is served."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def stored(make_given: Any, given_family: None, cache: Path, shared: Path) -> Path:
    make_given().posterior.save(shared / "p.zarr")
    return shared / "p.zarr"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1, with its key, that signs itself."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    text, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    file.write_bytes(key.private_bytes(text, kind, serialization.NoEncryption()) + signed.public_bytes(text))
    return file


class Server:
    """Serves a folder behind TLS; lists what was asked for; cuts answers off, or redirects."""

    def __init__(self) -> None:
        self.url, self.asked = "", list[str]()
        self.cut: str | None = None
        self.redirect: str | None = None


@pytest.fixture
def server(shared: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    found = Server()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            found.asked.append(self.path)
            if found.redirect is not None:
                self.send_response(302)
                self.send_header("Location", found.redirect)
                self.end_headers()
            elif found.cut is not None and re.search(found.cut, self.path):
                content = (shared / self.path[1:].partition("?")[0]).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:-5])
            else:
                super().do_GET()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(shared))) as serving:
        serving.socket = context.wrap_socket(serving.socket, server_side=True)
        thread = Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found.url = f"https://127.0.0.1:{serving.server_port}"
        yield found
        serving.shutdown()
        thread.join()


def test_a_folder_is_verified(stored: Path) -> None:
    expected = ff.open_posterior(stored).scores().values
    np.testing.assert_array_equal(ff.load(stored).scores().values, expected)
    chunk = next(path for path in (stored / "variational" / "scores" / "c").rglob("*") if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[::-1])
    with pytest.raises(InputError, match="checksum"):
        ff.load(stored)


@pytest.mark.thorough
def test_a_url_of_a_folder(stored: Path, server: Server, cache: Path) -> None:
    expected = ff.open_posterior(stored).scores().values
    found = ff.load(f"{server.url}/p.zarr?key=1")
    np.testing.assert_array_equal(found.scores().values, expected)
    assert Path(str(found.path)).parent == cache
    n_asked = len(server.asked)
    assert n_asked == len([path for path in stored.rglob("*") if path.is_file()]) - 1  # the card
    assert all(path.endswith("?key=1") for path in server.asked)
    ff.load(f"{server.url}/p.zarr?key=1")
    assert len(server.asked) == n_asked + 1  # the root, to see that it is the same one
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("top", [True, False])
def test_zip_files(stored: Path, server: Server, shared: Path, top: bool) -> None:
    """With the files at the top, or in one folder."""
    where = {"root_dir": stored} if top else {"root_dir": shared, "base_dir": "p.zarr"}
    shutil.make_archive(str(shared / "shared"), "zip", **where)
    expected = ff.open_posterior(stored).scores().values
    for path in (shared / "shared.zip", f"{server.url}/shared.zip"):
        np.testing.assert_array_equal(ff.load(path).scores().values, expected)


def test_a_posterior_is_saved_to_a_zip_file(stored: Path, shared: Path) -> None:
    opened = ff.open_posterior(stored)
    for name in ("a.zip", "b.zip"):
        opened.save(shared / name)
    found = ff.load(shared / "a.zip")
    np.testing.assert_array_equal(found.scores().values, opened.scores().values)
    assert (Path(str(found.path)) / "README.md").read_text() == opened.card()
    assert (shared / "a.zip").read_bytes() == (shared / "b.zip").read_bytes()
    assert sorted(path.name for path in shared.iterdir()) == ["a.zip", "b.zip", "p.zarr"]
    with pytest.raises(InputError, match="where nothing is yet"):
        opened.save(shared / "a.zip")


@pytest.mark.thorough
def test_what_is_no_posterior(stored: Path, server: Server, shared: Path, cache: Path) -> None:
    (shared / "other").mkdir()
    (shared / "other" / "zarr.json").write_text('{"attributes": {}}')
    (shared / "broken.zip").write_text("no zip")
    shutil.make_archive(str(shared / "pictures"), "zip", root_dir=stored / "variational" / "scores" / "c")
    paths = [f"{server.url}/{name}" for name in ("absent", "other", "broken.zip", "pictures.zip")]
    for path in (*paths, shared / "broken.zip", "https://127.0.0.1:1/p.zarr"):
        with pytest.raises(InputError, match=r"path = .*a posterior"):
            ff.load(path)
    next((stored / "variational").rglob("c/*")).rename(shared / "gone")
    with pytest.raises(InputError, match="404"):
        ff.load(f"{server.url}/p.zarr")
    assert list(cache.iterdir()) == []


def test_a_file_that_unpacks_to_more_than_is_free(
    stored: Path, shared: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused by the sizes that it declares; nothing of it is written."""
    ff.open_posterior(stored).save(shared / "a.zip")
    monkeypatch.setattr(sharing.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(InputError, match=r"a.zip, [\d,]+ bytes unpacked: expected at most the 10 bytes free"):
        ff.load(shared / "a.zip")
    assert not list(cache.iterdir())


def test_only_https(stored: Path, server: Server, cache: Path) -> None:
    """A password is not shown; neither does a redirect lead elsewhere, nor an unknown certificate pass."""
    with pytest.raises(InputError, match=r"http://lab\.example/p\.zarr.*an https:// URL") as error:
        ff.load("http://me:secret@lab.example/p.zarr?key=secret")
    assert "secret" not in str(error.value)
    server.redirect = "http://127.0.0.1:1/p.zarr"
    with pytest.raises(InputError, match="a redirect to http://127.0.0.1:1/p.zarr, which is not https"):
        ff.load(f"{server.url}/p.zarr")


def test_an_unknown_certificate(stored: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(InputError, match="(?i)certificate"):
        ff.load(f"{server.url}/p.zarr")


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [r"/c/", r"zarr\.json", r"\.zip$"])
def test_a_connection_that_ends_early(
    stored: Path, server: Server, shared: Path, cache: Path, cut: str
) -> None:
    """Nothing stays, and the next try downloads it."""
    ff.open_posterior(stored).save(shared / "p.zip")
    url = f"{server.url}/p.zip" if "zip" in cut else f"{server.url}/p.zarr"
    server.cut = cut
    with pytest.raises(InputError, match=r"ended after \d+ of \d+ bytes"):
        ff.load(url)
    assert list(cache.iterdir()) == []
    server.cut = None
    assert ff.load(url).factors


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["p.zarr", "p.zip"])
def test_damage_on_the_way(stored: Path, server: Server, shared: Path, cache: Path, name: str) -> None:
    """It does not enter the cache, where it would be found instead of what is right."""
    chunk = next(path for path in (stored / "variational" / "scores" / "c").rglob("*") if path.is_file())
    intact = chunk.read_bytes()
    chunk.write_bytes(intact[::-1])
    shutil.make_archive(str(shared / "p"), "zip", root_dir=stored)
    with pytest.raises(InputError, match="checksum"):
        ff.load(f"{server.url}/{name}")
    assert list(cache.iterdir()) == []
    chunk.write_bytes(intact)
    shutil.make_archive(str(shared / "p"), "zip", root_dir=stored)
    found = ff.load(f"{server.url}/{name}")
    # a copy in the cache that was damaged since is replaced
    copied = next(path for path in Path(str(found.path)).rglob("variational/scores/c/*/*") if path.is_file())
    copied.write_bytes(intact[::-1])
    ff.load(f"{server.url}/{name}").verify()
    assert copied.read_bytes() == intact


def test_an_interruption_leaves_nothing(
    stored: Path, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sharing, "_fetch_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ff.load(f"{server.url}/p.zarr")
    assert list(cache.iterdir()) == []


@pytest.mark.thorough
def test_commands_take_what_was_shared(
    stored: Path, server: Server, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ff.open_posterior(stored).save(shared / "p.zip")
    results = [
        CliRunner().invoke(app, ["summary", str(place), "--json"])
        for place in (stored, shared / "p.zip", f"{server.url}/p.zip", f"{server.url}/p.zarr")
    ]
    assert [result.exit_code for result in results] == [0] * 4
    assert len({result.stdout for result in results}) == 1
    refused = CliRunner().invoke(app, ["summary", "http://lab.example/p.zip"])
    assert refused.exit_code == 2
    assert "an https:// URL" in refused.output


@pytest.mark.thorough
def test_new_samples_without_the_data_of_the_fit(server: Server, shared: Path, cache: Path) -> None:
    rng = np.random.default_rng(0)
    rna = (rng.normal(size=(40, 2)) @ rng.normal(size=(2, 10)) + rng.normal(size=(40, 10))).round(3)
    old = ff.write_dataset(shared / "old", {"rna": rna})
    new = ff.write_dataset(shared / "new", {"rna": rna[:7]})
    fitted = ff.fit(old, n_factors=2, max_iter=10, progress=False, out=shared / "p.zarr")
    expected = fitted.project(new, progress=False).scores().values
    shutil.rmtree(shared / "old")
    found = ff.load(f"{server.url}/p.zarr").project(new, progress=False)
    np.testing.assert_array_equal(found.scores().values, expected)
