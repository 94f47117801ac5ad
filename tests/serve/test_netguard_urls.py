"""Which addresses and URLs are let through before anything is asked of the network."""

from __future__ import annotations

import pytest

from raydiance.serve import netguard
from raydiance.serve.errors import InvalidRequest

PRIVATE = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.5.4",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "fc00::1",
    "ff02::1",
    "2001:db8::1",
    "::ffff:8.8.8.8",
    "::8.8.8.8",
    "64:ff9b::8.8.8.8",
    "64:ff9b:1::1",
    "2002:0808:0808::1",
    "2001::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not netguard.is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111"])
def test_public_addresses(address: str) -> None:
    assert netguard.is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "//example.com/",
        "example.com",
        "http://",
        "http://user:pw@example.com/",
        "http://user@example.com/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://metadata.google.internal/",
        "http://169.254.169.254/latest",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://exa mple.com/",
        "http://example.com:99999999/",
        "http://example.com:0/",
        "http://[fe80::1%25eth0]/",
        "http://ex\x00ample.com/",
        "",
    ],
)
def test_check_url_refuses_early(url: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        netguard.check_url(url, [], "webhook")
    assert error.value.param == "webhook"


def test_check_url_lets_pass() -> None:
    assert netguard.check_url("https://example.com/x?y", []).host == "example.com"
    assert netguard.check_url("http://LocalHost:8000/", ["localhost"]).port == 8000
    assert netguard.check_url("http://10.0.0.7/", ["10.0.0.7"]).host == "10.0.0.7"
