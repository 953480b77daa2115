"""A headless Chromium, driven through chromedriver's own HTTP interface (W3C WebDriver).

`python -m tests.report.browser PAGE.html OUT` writes screenshots of a page.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

BINARIES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]


def missing() -> str:
    """The reason why there is no browser; empty if there is one."""
    if not shutil.which("chromedriver"):
        return "chromedriver is not installed (Debian: chromium chromium-driver)"
    return "" if any(map(shutil.which, BINARIES)) else "Chromium is not installed"


class Browser:
    """A session. `size` in CSS pixels; pictures are PNG."""

    def __init__(self, session_url: str) -> None:
        self._url = session_url

    def open(self, page: Path) -> None:
        self._post("url", {"url": page.resolve().as_uri()})

    def resize(self, width: int, height: int = 900) -> None:
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def colours(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.cdp("Emulation.setEmulatedMedia", features=features)

    def run(self, script: str) -> Any:
        """The value of a function's body."""
        return self._post("execute/sync", {"script": script, "args": []})

    def console(self) -> list[str]:
        """Console messages since the last call, including errors."""
        return [entry["message"] for entry in self._post("se/log", {"type": "browser"})]

    def picture(self) -> bytes:
        """The whole page."""
        taken = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return b64decode(taken["data"])

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return b64decode(self.cdp("Page.printToPDF", printBackground=True)["data"])

    def cdp(self, command: str, **parameters: Any) -> Any:
        return self._post("goog/cdp/execute", {"cmd": command, "params": parameters})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = requests.post(f"{self._url}/{path}", json=body, timeout=60).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{answer['error']}: {answer.get('message')}")
        return answer


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that is closed at the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    binary = next(path for name in BINARIES if (path := shutil.which(name)))
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(address)
        options = {"args": _ARGUMENTS, "binary": binary}
        wanted: dict[str, Any] = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        answer = requests.post(
            f"{address}/session", json={"capabilities": {"alwaysMatch": wanted}}, timeout=120
        ).json()["value"]
        if "sessionId" not in answer:
            raise RuntimeError(answer.get("message", str(answer)))
        url = f"{address}/session/{answer['sessionId']}"
        try:
            yield Browser(url)
        finally:
            requests.delete(url, timeout=60)
    finally:
        driver.terminate()
        driver.wait(30)


def _wait(address: str) -> None:
    for _ in range(100):
        try:
            if requests.get(f"{address}/status", timeout=5).json()["value"]["ready"]:
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.1)
    raise RuntimeError("chromedriver does not answer")


if __name__ == "__main__":
    page, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    with browser() as opened:
        for scheme in ("light", "dark"):
            for width in (1280, 390):
                opened.colours(scheme)
                opened.resize(width)
                opened.open(page)
                (out / f"{scheme}_{width}.png").write_bytes(opened.picture())
        (out / "print.pdf").write_bytes(opened.pdf())
