"""Results as JSON: who was measured on what, and the rows."""

import json
from pathlib import Path
from typing import Any

from benchmarks.papers import provenance

__all__ = ["RESULTS", "read", "write"]

RESULTS = Path(__file__).parent / "results"


def write(out: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Add rows to the file of a measurement, in place of those of the same key."""
    old = read(out, name)["rows"] if (out / f"{name}.json").exists() else []
    kept = [one for one in old if _key(one) not in map(_key, rows)]
    held = {
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "rows": [*kept, *rows],
    }
    out.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(one) for one in held["rows"])
    head = json.dumps({k: v for k, v in held.items() if k != "rows"}, indent=1)
    text = head[:-2] + ',\n "rows": [\n' + lines + "\n ]\n}\n"
    (out / f"{name}.json").write_text(text)


def read(out: Path, name: str) -> dict[str, Any]:
    """The file of a measurement."""
    return json.loads((out / f"{name}.json").read_text())


def _key(row: dict[str, Any]) -> tuple:
    """What was asked for: everything that is no number measured."""
    return tuple(row.get(k) for k in ("case", "dtype", "along", "value"))
