"""A Hugging Face Hub on this machine that serves one repository, well or badly."""

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

REPO, COMMIT = "org/model", "c" * 40
PAGE = b"<!DOCTYPE html><title>Log in</title>"

Fault = Literal["none", "html", "malformed", "resets", "stalls", "drips", "html file", "gated file"]
"""Faults of the Hub: in every answer, or in the content of files."""


@contextmanager
def hub_server(files: Mapping[str, bytes], fault: Fault = "none") -> Iterator[str]:
    """The address of a Hub that has these files."""
    handler = type("Handler", (_Handler,), {"files": dict(files), "fault": fault})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    files: dict[str, bytes]
    fault: Fault

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        name = self.path.rpartition("/")[2]
        content = self.files[name]
        if self.fault == "gated file":
            self._start(403, 0, {"X-Error-Code": "GatedRepo"})
        else:
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            self._start(200, len(content), {"ETag": etag, "X-Repo-Commit": COMMIT})

    def do_GET(self) -> None:
        if self.fault == "resets":  # a close with this option sends RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif self.fault == "html":
            self._send(PAGE)
        elif "/api/" in self.path:
            self._send(json.dumps(self._listing()).encode())
        else:
            self._send_file(self.files[self.path.rpartition("/")[2]])

    def _listing(self) -> object:
        if self.fault == "malformed":
            return ["not", "a", "repository"]
        if "/tree/" in self.path:
            return [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in self.files.items()
            ]
        siblings = [{"rfilename": name, "size": len(c)} for name, c in self.files.items()]
        return {"id": REPO, "sha": COMMIT, "siblings": siblings}

    def _send_file(self, content: bytes) -> None:
        if self.fault == "html file":
            self._send(PAGE)
        elif self.fault in ("stalls", "drips") and len(content) > 2**20:
            self._start(200, len(content), {})
            with suppress(OSError):
                self.wfile.write(content[: 2**20])
                if self.fault == "stalls":
                    self.connection.recv(1)  # until the client is gone
                    return
                for start in range(2**20, len(content), 2**20):
                    time.sleep(0.1)
                    self.wfile.write(content[start : start + 2**20])
        else:
            self._send(content)

    def _send(self, content: bytes) -> None:
        self._start(200, len(content), {})
        with suppress(OSError):
            self.wfile.write(content)

    def _start(self, status: int, num_bytes: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(num_bytes))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
