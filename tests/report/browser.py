"""A headless Chromium, driven through chromedriver's own HTTP interface (W3C WebDriver)."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import requests

from tests.support.ends import wait_until

BINARIES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]


def missing() -> str:
    """The reason why there is no browser, empty if there is one."""
    if not shutil.which("chromedriver"):
        return "chromedriver is not installed (Debian: chromium chromium-driver)"
    return "" if any(map(shutil.which, BINARIES)) else "Chromium is not installed"


class Browser:
    """A browser that is driven over HTTP. Sizes are in CSS pixels."""

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
        """The value that a function with this body returns."""
        return self._post("execute/sync", {"script": script, "args": []})

    def wait_for_frames(self) -> None:
        """Wait for two frames, after which everything that depends on sizes is drawn."""
        script = (
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));"
        )
        self._post("execute/async", {"script": script, "args": []})

    def console(self) -> list[str]:
        """Console messages since the last call, including errors."""
        return [entry["message"] for entry in self._post("se/log", {"type": "browser"})]

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
        assert wait_until(lambda: _is_ready(address)), "chromedriver does not answer"
        wanted: dict[str, Any] = {
            "goog:chromeOptions": {"args": _ARGUMENTS, "binary": binary},
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


def problems_of(opened: Browser, page: Path) -> list[str]:
    """The errors, sideways scrolling and requests of a page, light and dark, wide and narrow."""
    problems: list[str] = []
    for scheme, width in product(("light", "dark"), (1280, 390)):
        opened.colours(scheme)
        opened.resize(width)
        opened.open(page)
        problems += map(str, opened.console())
        widest = opened.run("return document.documentElement.scrollWidth")
        problems += [f"{widest} pixels at a width of {width}"] * (widest > width)
        loaded = "return performance.getEntriesByType('resource').map(e => e.name)"
        problems += [url for url in opened.run(loaded) if not url.startswith("data:")]
    return problems


def _is_ready(address: str) -> bool:
    with suppress(requests.ConnectionError):
        return bool(requests.get(f"{address}/status", timeout=5).json()["value"]["ready"])
    return False
