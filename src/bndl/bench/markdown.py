"""What all benchmarks found, as one page of Markdown: the claims, then each table with what it was measured on."""

import math
from typing import Any

__all__ = ["page", "table"]


def page(records: list[dict[str, Any]]) -> str:
    """Of the records that :mod:`bndl.bench.record` writes as JSON."""
    claims = [claim for record in records for claim in record["claims"]]
    lines = ["# Speed", "", *_claims(claims)] if claims else ["# Speed"]
    for record in records:
        machine, settings = record["machine"], ", ".join(f"{key} {value}" for key, value in record["settings"].items())
        versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
        lines += ["", f"## {record['name']}: {record['about']}", ""]
        lines += [f"{machine['cores']} cores, {machine['threads']} threads; {versions}; {settings}.", ""]
        lines += [*table(record["rows"]), ""] if record["rows"] else []
        lines += record["notes"]
    return "\n".join(lines).rstrip("\n") + "\n"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows with the same keys, as lines."""
    keys = list(rows[0])
    head = [f"| {' | '.join(keys)} |", "|---" * len(keys) + "|"]
    return head + [f"| {' | '.join(shown(row.get(key)) for key in keys)} |" for row in rows]


def shown(value: Any) -> str:
    """A cell: four digits, thousands kept whole."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _claims(claims: list[dict[str, Any]]) -> list[str]:
    rows = []
    for claim in claims:
        low, middle, high = (shown(float(f"{claim['value'][key]:.3g}")) for key in ("low", "median", "high"))
        rows.append(
            {
                "claim": claim["about"],
                "wanted": f"{claim['sense']} {claim['bound']:g}",
                "measured (quartiles)": middle if low == high else f"{middle} ({low} to {high})",
                "": "holds" if claim["holds"] else "**does not hold**",
            }
        )
    return table(rows)
