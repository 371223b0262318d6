"""The report's data as one HTML file: no network, no build step, and nothing in it that a class name could run."""

import base64
import hashlib
import html
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from bndl.errors import InputError
from bndl.files import replacing

__all__ = ["SCRIPTS", "STYLES", "render", "write"]

STYLES = ("style.css", "parts.css")
SCRIPTS = (
    "data.js",
    "dom.js",
    "charts.js",
    "bars.js",
    "state.js",
    "verdict.js",
    "reliability.js",
    "trust.js",
    "examples.js",
    "classes.js",
    "features.js",
    "mistakes.js",
    "engine.js",
    "effects.js",
    "whatif.js",
    "faithfulness.js",
    "method.js",
    "main.js",
)  # in the order in which they are read: they share one scope


def render(data: Mapping[str, Any], *, extra_scripts: Sequence[str] = ()) -> str:
    """The page of a report.

    Args:
        data: the report's data (``"format": 1``): plain dicts, lists, strings and finite numbers.
        extra_scripts: source of scripts that run after the page's own, such as the explorer's. With them, or where
            ``data["meta"]["live"]`` is set, the page may talk to the server that it came from; otherwise to nobody.
    """
    if data.get("format") != 1:
        raise InputError(f"the report's data have format {data.get('format')!r}, this page shows 1: make them again.")
    meta = data.get("meta", {})
    style = "\n".join(_asset(name) for name in STYLES)
    body = "\n".join(f"// {name}\n{_asset(name)}" for name in SCRIPTS)
    scripts = [f'(() => {{\n"use strict";\n{body}\n}})();', *(_lines(script) for script in extra_scripts)]
    for script in scripts:
        if re.search(r"</script|<!--", script, flags=re.IGNORECASE):
            raise InputError(
                "a script of the page holds '</script' or '<!--', which would end it early: split the string."
            )
    parts = {
        "csp": html.escape(_policy(style, scripts, live=bool(meta.get("live")) or bool(extra_scripts))),
        "title": html.escape(str(meta.get("title") or "BNDL report").encode(errors="replace").decode()),
        "style": style,
        "data": _embedded(data),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def write(data: Mapping[str, Any], path: str | os.PathLike[str], *, extra_scripts: Sequence[str] = ()) -> Path:
    """Write the page of a report to ``path``, whole or not at all, and return the path."""
    page = render(data, extra_scripts=extra_scripts)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")
    return Path(path)


def _asset(name: str) -> str:
    """One file of the page as text, its lines ended as a browser hashes them."""
    return _lines(resources.files("bndl.report").joinpath("assets", name).read_text(encoding="utf-8"))


def _lines(text: str) -> str:
    """A browser turns CR LF into LF before it hashes, so do we."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _policy(style: str, scripts: Sequence[str], *, live: bool) -> str:
    """Content security policy: nothing but our own text runs, found by its hash; only a live page may ask its server."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    rules = [
        "default-src 'none'",
        f"script-src {hashes}",
        f"style-src 'sha256-{_digest(style)}'",
        "img-src data: blob:" if live else "img-src data:",
        *(["connect-src 'self'"] if live else []),
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(rules)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that stays inside its script element: no ``<``, ``>``, ``&`` and nothing but ASCII."""
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        where = _not_finite(data, "")
        raise InputError(
            f"the report's data hold a number that is not finite at {where or 'an unknown place'}: "
            "write None where something was not measured."
        ) from error
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _not_finite(value: object, where: str) -> str | None:
    """The path of the first number that JSON cannot hold."""
    if isinstance(value, float):
        return None if math.isfinite(value) else where
    if isinstance(value, Mapping):
        items = [(f"{where}.{key}".lstrip("."), entry) for key, entry in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{where}[{number}]", entry) for number, entry in enumerate(value)]
    else:
        return None
    return next((found for path, entry in items if (found := _not_finite(entry, path))), None)
