"""A report that is opened in a real browser, away from any network; what it says and what it asks for is kept."""

import base64
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from sample import sample

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DATA = sample()


class Visit:
    """A page that was opened, with what it said and what it asked for."""

    def __init__(self, browser: Any, path: Path, *, hash: str = "", width: int = 1280, **options: Any) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 844}, reduced_motion="reduce", accept_downloads=True, **options
        )
        self.said: list[str] = []
        self.asked: list[str] = []
        self.context.route(re.compile(r"^(?!file:|data:|blob:)"), self._refuse)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.address = path.as_uri()
        self.page.goto(self.address + hash)

    def _refuse(self, route: Any) -> None:
        self.asked.append(route.request.url)
        route.abort()

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: Any, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert self.said == []
            assert self.asked == []


def row_values(table: Any) -> list[float]:
    amounts = table.locator("[data-amount]").evaluate_all("nodes => nodes.map(node => node.dataset.amount)")
    return [float(amount) for amount in amounts]


def read(data: dict[str, Any], name: str, kind: str) -> np.ndarray:
    """A column of the examples, (N, ...)."""
    examples = {**data["examples"], **data["examples"]["phi"]}
    rows = examples["count"] if name != "weights" else len(examples["theta_features"])
    return np.frombuffer(base64.b64decode(examples[f"{name}_b64"]), dtype=kind).reshape(rows, -1).squeeze()


def arrays(data: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Theta (N, F), Phi (F, C), logits (N, C) and truth (N,) as the page holds them."""
    return (
        read(data, "theta", "<f2"),
        read(data, "weights", "<f4"),
        read(data, "logits", "<f4"),
        read(data, "truth", "<u2"),
    )
