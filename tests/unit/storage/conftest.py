"""An S3 server inside the test process."""

import urllib.request
from collections.abc import Iterator
from uuid import uuid4

import pytest
from moto.server import ThreadedMotoServer


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of moto's server; the AWS_* variables point to it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_REGION", "us-east-1")
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_uri(s3_server: str) -> str:
    """A bucket of its own for each test, with a prefix."""
    bucket = f"eyas-{uuid4().hex}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{bucket}", method="PUT"), timeout=10).close()
    return f"s3://{bucket}/some/prefix"
