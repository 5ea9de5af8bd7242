"""The command that serves containers to clients of Cosmos DB."""

import os
import re
import signal
import sqlite3
import ssl
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from azure.cosmos import CosmosClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.command_line import PROGRAM, leasehold

from leasehold.feeds.container import Container


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "alerts.db"
    with Container.create(
        path, name="alerts", namespace="homes.local", partition_key="/home_id", ranges=2
    ) as container:
        container.upsert_many({"id": f"a{n}", "home_id": f"H{n}"} for n in range(20))
    return path


@contextmanager
def serving(*words):
    with subprocess.Popen(
        [*PROGRAM, "container", "serve", *map(str, words), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said = process.stdout.readline() + process.stdout.readline()
            assert "http" in said, said + process.stderr.read()
            yield re.search(r"(https?://\S+)", said)[1], said
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert process.stdout.read().endswith("stopped\n")
        finally:
            process.kill()


def refused(*words):
    done = leasehold("container", "serve", *words, ok=False)
    assert done.returncode == 2
    return " ".join(done.stderr.split())


def test_a_file_is_served_as_it_is_and_keeps_what_clients_write(path):
    with serving(path) as (url, said):
        assert "homes.local/alerts" in said
        assert url.startswith("http://127.0.0.1:")
        key_file = path.with_suffix(".key")
        assert str(key_file) in said
        key = key_file.read_text().strip()
        assert key not in said
        assert os.stat(key_file).st_mode & 0o777 == 0o600
        with CosmosClient(url, key) as client:
            alerts = client.get_database_client("homes.local").get_container_client("alerts")
            assert len(list(alerts.read_all_items())) == 20
            alerts.create_item({"id": "new", "home_id": "H1"})
            with pytest.raises(Exception, match="--folder"):
                client.create_database("other")
    with serving(path) as (url, _), CosmosClient(url, key) as client:
        assert [each["id"] for each in client.list_databases()] == ["homes.local"]
    with Container.open(path) as container:
        assert container.read("new", "H1")["id"] == "new"


def test_tls_is_served_with_a_certificate(path, tmp_path):
    certificate, key = _certificate(tmp_path)
    with serving(path, "--tls-cert", certificate, "--tls-key", key) as (url, _):
        assert url.startswith("https://")
        secret = path.with_suffix(".key").read_text().strip()
        with CosmosClient(url, secret, connection_verify=str(certificate)) as client:
            assert [each["id"] for each in client.list_databases()] == ["homes.local"]


def test_what_cannot_be_served_is_said(path, tmp_path):
    assert "container create" in refused(tmp_path / "none.db")
    assert "--folder" in refused()
    assert "--tls-cert" in refused(path, "--tls-key", path)
    assert "cannot be used" in refused(path, "--tls-cert", path)
    assert "above 0" in refused(path, "--request-units", 0)
    readable = tmp_path / "open.key"
    readable.write_text("c2VjcmV0")
    readable.chmod(0o644)
    assert "chmod 600" in refused(path, "--key-file", readable)
    readable.chmod(0o600)
    assert "no key in base64" in refused(path, "--key-file", readable)


def test_a_file_of_an_older_version_is_not_served_but_works_as_before(path):
    with sqlite3.connect(path) as db:
        db.execute("UPDATE container SET hashing = 'fnv1a'")
    assert "older version" in refused(path)
    with Container.open(path) as container:
        container.upsert({"id": "new", "home_id": "H99"})
        assert container.read("new", "H99")["id"] == "new"


def _certificate(folder):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    assert ssl.PEM_cert_to_DER_cert(certificate.read_text())
    return certificate, private
