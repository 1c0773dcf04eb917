"""The page of notes on the papers: what differs from print, each with its check."""

import json
from pathlib import Path

from benchmarks.papers import results
from benchmarks.papers.coupled.additive import TABLE_1

TEMPLATE = Path(__file__).parent / "notes.md"


def page(folder: Path) -> str:
    """The notes, with the numbers of the checks and of table 1."""
    held = json.loads((folder / "checks.json").read_text())
    rows = held["row number"]
    return TEMPLATE.read_text().format(
        magic=rows["magic"],
        chess=rows["chess_krvk"],
        wall=rows["wall_following"],
        letter=rows["letter"],
        waveform=rows["waveform"],
        beta=-held["beta"]["0.1 against 0.001"],
        banana=held["banana"],
        banana_all=400 + held["banana"],
        jensen=held["jensen"],
        boston_right=held["boston"]["defined"],
        boston_code=held["boston"]["released"],
        image_test=held["image"]["test"],
        image_train=held["image"]["train"],
        image_all=held["image"]["test"] + held["image"]["train"],
        pines_rows=held["pines"]["rows"],
        pines_distinct=held["pines"]["distinct"],
        naval=held["columns"]["naval"],
        wine=held["columns"]["wine_red"],
        energy=held["energy"],
        energy_density=-held["energy"]["log density"],
        **gaps(folder),
    )


def gaps(folder: Path) -> dict[str, float]:
    """How far below the evidence the bounds of table 1 are, published and at best."""
    _, runs = results.found(TABLE_1, folder)
    entries = {}
    for row in results.rows(TABLE_1, runs):
        kind = {"coupled": "c", "mean field": "mf"}.get(row.case["q(v)"])
        if kind:
            name = f"{kind}{row.case['M']}"
            cells = {cell.measure.name: cell for cell in row.cells}
            entries[name] = -cells["smallest gap"].ours.mean
            entries[f"{name}_published"] = -cells["gap"].published.mean
    return entries
