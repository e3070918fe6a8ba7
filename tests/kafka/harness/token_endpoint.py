"""An identity provider of one client: gives out tokens that Kafka takes where it is not told to verify signatures."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, quote_plus

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

__all__ = ["TokenEndpoint", "unsigned_token"]


def unsigned_token(subject: str = "shipper", seconds: float = 60.0) -> str:
    """A JSON web token that nobody signed (algorithm "none"), valid for so long."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now - 1, "exp": now + seconds})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join(encoded) + "."


class TokenEndpoint:
    """Serves while entered, from threads of its own, over TLS where a context is given.

    CLIENT_ID, CLIENT_SECRET: whom it knows. asked: the forms that were posted. answer: a status and a body in place of
    what is right. seconds: the life of its tokens, as it says. held: whether it lets everybody wait.
    """

    CLIENT_ID = "me:1"
    CLIENT_SECRET = "hunter2 &"

    def __init__(
        self, tls: ssl.SSLContext | None = None, token: Callable[[int], str] = lambda number: f"token-{number}"
    ) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.answer: tuple[int, str] | None = None
        self.seconds: Any = 100
        self.passing = threading.Event()
        self.passing.set()
        self._token = token
        self._tls = tls is not None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that refuse us, or leave
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """Where tokens are asked for."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._server.server_address[1]}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.passing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)

    def respond(self, authorization: str | None) -> tuple[int, str]:
        """Status and body for whoever comes with this header."""
        if self.answer is not None:
            return self.answer
        pair = f"{quote_plus(self.CLIENT_ID)}:{quote_plus(self.CLIENT_SECRET)}"
        if authorization != f"Basic {base64.b64encode(pair.encode()).decode()}":
            return 401, json.dumps({"error": "invalid_client", "error_description": "who?"})
        return 200, json.dumps({"access_token": self._token(len(self.asked)), "expires_in": self.seconds})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                endpoint.passing.wait(30)
                endpoint.asked.append(parse_qs(form))
                status, body = endpoint.respond(self.headers["Authorization"])
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        return Handler
