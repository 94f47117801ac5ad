"""HTTP to addresses that strangers name. One guard for all of it: no request reaches a private network.

A host is resolved once, every address it has is checked, and the connection goes to a checked address: a name that
resolves differently a moment later changes nothing. `Host` and the certificate's name stay the URL's. Proxies from
the environment are ignored; a redirect is a new URL, checked like the first.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from ssl import SSLContext

import httpx

from raydiance.serve.errors import InvalidRequest, TooLarge, Unavailable

MAX_REDIRECTS = 3
Resolve = Callable[[str, int], Awaitable[list[str]]]
_HOST = re.compile(rb"[a-z0-9._-]+|[0-9a-f:.]+", re.IGNORECASE)  # a name or an address; no IPv6 zone
_LOCAL_NAMES = ("localhost", "local", "internal")
_GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
_TUNNELS = [
    ipaddress.ip_network(n) for n in ("2001::/32", "2002::/16", "192.88.99.0/24")
]  # Teredo, 6to4 and its relays


def is_public(address: str) -> bool:
    """Whether an IP address is a plain public one.

    Not so: private, loopback, link-local, shared (100.64/10), multicast, reserved; IPv6 forms that wrap an IPv4 address
    (mapped, NAT64, 6to4, Teredo), since what they reach depends on the network.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address) and ip not in _GLOBAL_IPV6:
        return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and not any(ip in net for net in _TUNNELS)


def check_url(url: str, allow_hosts: Collection[str], field: str = "url") -> httpx.URL:
    """Refuse, without a look-up, what can never be fetched.

    Raises:
        InvalidRequest: not http(s), with a user name, without a valid host, or a host that is plainly local.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as e:
        raise InvalidRequest("this is no URL", field) from e
    if parsed.scheme not in ("http", "https"):
        raise InvalidRequest(f"'{parsed.scheme}' is not supported: use https", field)
    if parsed.userinfo:
        raise InvalidRequest("the URL must not hold a user name or password", field)
    if not _HOST.fullmatch(parsed.raw_host) or not 1 <= (80 if parsed.port is None else parsed.port) <= 65_535:
        raise InvalidRequest("the URL has no valid host and port", field)
    host = parsed.host
    if not _is_allowed(host, allow_hosts):
        try:
            local = not is_public(host)
        except ValueError:
            local = host.rstrip(".").rsplit(".", 1)[-1] in _LOCAL_NAMES
        if local:
            raise InvalidRequest(f"'{host}' is not a public host", field)
    return parsed


async def resolve_host(host: str, port: int) -> list[str]:
    """The addresses of a host, as the machine's resolver orders them. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def fetch(
    url: str,
    *,
    max_bytes: int,
    timeout_s: float,
    allow_hosts: Collection[str],
    field: str = "url",
    resolve: Resolve = resolve_host,
) -> tuple[bytes, str]:
    """GET a file: its bytes and content type. Follows up to three redirects.

    Args:
        timeout_s: seconds for all of it: look-up, redirects and body.
        allow_hosts: names or addresses that may be private.

    Raises:
        InvalidRequest: the URL is refused, or it did not give a file in time. Names `field`.
        TooLarge: more than `max_bytes`; the rest has not been read.
    """
    try:
        async with asyncio.timeout(timeout_s), _client(allow_hosts, field, resolve) as client:
            target = check_url(url, allow_hosts, field)
            for _ in range(MAX_REDIRECTS + 1):
                async with client.stream("GET", target, headers={"Accept-Encoding": "identity"}) as response:
                    if response.next_request is not None:
                        target = check_url(str(response.next_request.url), allow_hosts, field)
                        continue
                    if response.status_code != 200:
                        raise InvalidRequest(f"the URL answered with status {response.status_code}", field)
                    return await _body(response, max_bytes, field), response.headers.get("content-type", "")
            raise InvalidRequest(f"the URL redirects more than {MAX_REDIRECTS} times", field)
    except TimeoutError as e:
        raise InvalidRequest(f"the URL did not deliver within {timeout_s:g} seconds", field) from e
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        raise InvalidRequest(f"the URL cannot be fetched: {type(e).__name__}", field) from e


async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    allow_hosts: Collection[str],
    field: str = "url",
    resolve: Resolve = resolve_host,
) -> int:
    """POST `body`; returns the status. No redirect is followed, the answer's body is not read.

    Raises:
        InvalidRequest: the URL is refused.
        Unavailable: no answer within `timeout_s` seconds.
    """
    try:
        async with asyncio.timeout(timeout_s), _client(allow_hosts, field, resolve) as client:
            target = check_url(url, allow_hosts, field)
            async with client.stream("POST", target, content=body, headers=headers) as response:
                return response.status_code
    except TimeoutError as e:
        raise Unavailable(f"no answer within {timeout_s:g} seconds") from e
    except httpx.HTTPError as e:
        raise Unavailable(f"no answer: {type(e).__name__}") from e


class _GuardedTransport(httpx.AsyncBaseTransport):
    """Sends each request to a checked address of its host, under the host's own name."""

    def __init__(self, allow_hosts: Collection[str], field: str, resolve: Resolve) -> None:
        self._allow_hosts = allow_hosts
        self._field = field
        self._resolve = resolve
        # no connection is kept: one that was made for another name at the same address must not be used again
        limits = httpx.Limits(max_keepalive_connections=0)
        self._inner = httpx.AsyncHTTPTransport(verify=_tls(), trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        last_error: httpx.TransportError = httpx.ConnectError("no address")
        for address in await self._addresses(request.url):
            try:
                return await self._inner.handle_async_request(_pinned(request, address))
            except (httpx.ConnectError, httpx.ConnectTimeout) as e:
                last_error = e
        raise last_error

    async def _addresses(self, url: httpx.URL) -> list[str]:
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            addresses = await self._resolve(url.raw_host.decode(), port)
        except (OSError, UnicodeError) as e:
            raise httpx.ConnectError("the host has no address") from e
        if _is_allowed(url.host, self._allow_hosts):
            return addresses
        if not all(is_public(a) or _is_allowed(a, self._allow_hosts) for a in addresses):
            raise InvalidRequest(f"'{url.host}' is not a public host", self._field)
        return addresses

    async def aclose(self) -> None:
        await self._inner.aclose()


def _pinned(request: httpx.Request, address: str) -> httpx.Request:
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,  # Host among them
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.raw_host.decode()},
    )


@asynccontextmanager
async def _client(allow_hosts: Collection[str], field: str, resolve: Resolve) -> AsyncIterator[httpx.AsyncClient]:
    transport = _GuardedTransport(allow_hosts, field, resolve)
    # the callers' own limit covers everything, so that a server that sends a byte now and then gains nothing
    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=httpx.Timeout(None)) as client:
        yield client


@lru_cache(maxsize=1)
def _tls() -> SSLContext:
    return httpx.create_ssl_context()  # certifi's roots, or those of SSL_CERT_FILE


def _is_allowed(host: str, allow_hosts: Collection[str]) -> bool:
    return host.lower() in {h.lower() for h in allow_hosts}


async def _body(response: httpx.Response, max_bytes: int, field: str) -> bytes:
    too_large = TooLarge(f"the file has more than {max_bytes} bytes", field)
    if int(response.headers.get("content-length", 0)) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)
