"""A relay between the applicant and one server. It keeps every byte that the server, or the network, can see."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit


class Relay:
    """Listens on its own port and passes all bytes on, both ways."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._target = (address.hostname, address.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen = bytearray()  # what the server saw since the last clear
        self.up = self.down = 0
        self.cut: int | None = None  # break the connection once, after this many bytes from the server
        self.alter: Callable[[bytes], bytes] | None = None  # changes what the server sends before the applicant gets it
        self.creep: int | None = None  # break every connection, each after a few bytes more than the one before
        self.step = 10  # how many bytes more
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        sent = 0
        try:
            while data := source.recv(1 << 16):
                if up:
                    self.seen += data
                    self.up += len(data)
                else:
                    self.down += len(data)
                    data = self.alter(data) if self.alter else data
                    if self.creep is not None and sent + len(data) > self.creep:
                        target.sendall(data[: self.creep - sent])
                        self.creep += self.step
                        break
                    if self.cut is not None and self.down > self.cut:
                        target.sendall(data[: len(data) // 2])
                        self.cut = None
                        break
                sent += len(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            self._open -= {source, target}
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)  # otherwise a thread that reads from it would keep it open
                end.close()

    def view(self) -> list[dict[str, Any]]:
        """Return the requests that were seen: request line, headers, and length of the body."""
        requests, rest = [], bytes(self.seen)
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            line, *headers = head.decode().split("\r\n")
            length = next((int(h.split(":")[1]) for h in headers if h.lower().startswith("content-length")), 0)
            requests.append({"line": line, "headers": headers, "length": length})
            rest = rest[length:]
        return requests

    def sever(self) -> None:
        """Cut every connection that is open now."""
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # otherwise the thread would accept one more
        self._listener.close()
