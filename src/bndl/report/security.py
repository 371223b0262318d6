"""Who may ask the explorer, and how much: hosts, origins, a token, a header of our own, and limits while reading.

On this machine alone (127.0.0.1) there need be no token, but a page of another site could still reach the port through the
reader's browser. So the ``Host`` must be this machine's name (no DNS rebinding), the ``Origin`` the page's own, and whatever
changes or computes something needs a header that no foreign page can set without a permission that is never given (no CORS).
"""

import hmac
import ipaddress
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

from starlette.exceptions import HTTPException

from bndl.errors import InputError
from bndl.report.refused import RefusedError
from bndl.report.uploads import MAX_BYTES, too_large

__all__ = ["HEADER", "Guard", "Rules", "is_loopback"]

HEADER = "x-bndl"
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
_MAX_JSON = 256 * 2**10
_LEAST_TOKEN = 12  # characters
_ALWAYS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
_POLICY = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Rules:
    """Who may ask.

    Attributes:
        hosts: names that a request may be addressed to; None: any, because the token tells friends.
        token: what they know, or None.
        cookie: the name of the cookie that stands for the token.
        session: the cookie's value, drawn anew at each start, so that the token itself is kept nowhere.
    """

    hosts: frozenset[str] | None
    token: str | None
    cookie: str
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @classmethod
    def of(cls, host: str, *, port: int, token: str | None) -> "Rules":
        """The rules of a server at ``host``; one that others can reach must have a token."""
        if not is_loopback(host) and not token:
            raise InputError(
                f"other machines can reach {host}, so a token is needed: add --token TEXT, or leave out --host."
            )
        if token is not None and (len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable()):
            raise InputError(f"a token has at least {_LEAST_TOKEN} plain characters: choose one that nobody guesses.")
        local = _LOCAL | {f"[{host}]" if ":" in host else host}
        return cls(local if is_loopback(host) else None, token, f"bndl-{port}")


class Guard:
    """ASGI middleware that keeps the rules, limits what is read, and adds the headers that browsers heed.

    Args:
        app: what is guarded.
        rules: who may ask.
    """

    def __init__(self, app: App, *, rules: Rules) -> None:
        self.app, self.rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        request = _Request(scope)
        try:
            self._check_source(request)
            if self.rules.token is not None and await self._welcomed(request, send):
                return
            limit = MAX_BYTES if request.path == "/api/upload" else _MAX_JSON
            if request.length > limit:
                raise too_large() if limit == MAX_BYTES else _much()
        except RefusedError as refused:
            await _say(_with_headers(send), refused)
            return
        await self.app(scope, _limited(receive, limit), _with_headers(send))

    def _check_source(self, request: "_Request") -> None:
        hosts = request.all("host")
        if len(hosts) != 1 or (self.rules.hosts is not None and _name(hosts[0]) not in self.rules.hosts):
            raise RefusedError("This address is not the explorer's own: open it as http://127.0.0.1.", status=421)
        if any(_place(origin) != hosts[0].lower() for origin in request.all("origin")):
            raise RefusedError("Another site's page asked for this: open the explorer's own page.", status=403)
        inside = request.path.startswith("/api/")
        if inside and request.one("sec-fetch-site") not in (None, "same-origin", "none"):
            raise RefusedError("Another site's page asked for this: open the explorer's own page.", status=403)
        if request.method not in ("GET", "HEAD") and request.one(HEADER) is None:
            raise RefusedError(
                f"Requests that do something need the header {HEADER}: use the explorer's page.", status=403
            )

    async def _welcomed(self, request: "_Request", send: Send) -> bool:
        """Whether the request was answered here: with a cookie, for the token in the address."""
        token, rules = (self.rules.token or ""), self.rules
        given = parse_qs(request.query).get("token", [""])[0]
        if request.path == "/" and request.method == "GET" and _same(given, token):
            cookie = f"{rules.cookie}={rules.session}; HttpOnly; SameSite=Lax; Path=/"
            headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
            await _with_headers(send)({"type": "http.response.start", "status": 303, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return True
        kind, _, bearer = (request.one("authorization") or "").partition(" ")
        if not (kind.lower() == "bearer" and _same(bearer, token)) and not _same(
            request.cookie(rules.cookie), rules.session
        ):
            raise RefusedError("A token is needed: open the address with ?token= and the token at its end.", status=401)
        return False


class _Request:
    """What matters of an ASGI scope."""

    def __init__(self, scope: Scope) -> None:
        self.method, self.path = str(scope["method"]), str(scope["path"])
        self.query = scope.get("query_string", b"").decode("latin-1")
        self._headers = [(key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in scope["headers"]]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._headers if key == name]

    def one(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    def cookie(self, name: str) -> str:
        try:
            found = SimpleCookie("; ".join(self.all("cookie"))).get(name)
        except CookieError:
            return ""
        return "" if found is None else found.value

    @property
    def length(self) -> int:
        text = self.one("content-length") or "0"
        return int(text[:18]) if text.isascii() and text.isdecimal() else 0


def _same(given: str, known: str) -> bool:
    """In a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(), known.encode())


def _name(host: str) -> str:
    """A ``Host`` header without its port, in lower case."""
    name = host.lower()
    return name.partition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]


def _place(origin: str) -> str | None:
    """Host and port of an ``Origin`` header; None where it is none."""
    try:
        found = urlsplit(origin)
    except ValueError:
        return None
    return found.netloc.lower() if found.scheme in ("http", "https") else None


def _much() -> RefusedError:
    return RefusedError("The question is too long: send fewer edits.", status=413)


def _limited(receive: Receive, limit: int) -> Receive:
    """Count what is read, whatever its length was said to be."""
    count = 0

    async def counted() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > limit:
            refused = too_large() if limit == MAX_BYTES else _much()
            raise HTTPException(refused.status, str(refused))
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {key.lower() for key, _ in message.get("headers", [])}
            added = {**_ALWAYS, b"content-security-policy": _POLICY}
            message = {
                **message,
                "headers": [*message.get("headers", []), *((k, v) for k, v in added.items() if k not in given)],
            }
        await send(message)

    return sent


async def _say(send: Send, refused: RefusedError) -> None:
    body = json.dumps({"error": str(refused)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status in (401, 413):
        headers.append((b"connection", b"close"))  # what is left of the body is not read
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
