"""Tables for applied examples, in the units in which they were measured."""

from csv import DictReader
from io import StringIO

import numpy as np

from svgp_ppl.datasets.stored import fetch, stored

__all__ = ["table"]

# Copies of the data sets of R packages, as comma-separated text.
_SOURCE = "https://raw.githubusercontent.com/vincentarelbundock/Rdatasets/master/csv/"
_FILES = {
    "air_quality": "datasets/airquality.csv",
    "breast_cancer": "survival/gbsg.csv",
    "election_panel": "carData/BEPS.csv",
    "grouse_ticks": "lme4/grouseticks.csv",
    "mauna_loa": "Stat2Data/CO2Hawaii.csv",
    "snow_deaths": "HistData/Snow.deaths.csv",
    "snow_pumps": "HistData/Snow.pumps.csv",
    "snow_streets": "HistData/Snow.streets.csv",
}


def table(name: str) -> dict[str, np.ndarray]:
    """The columns of a table by name: numbers, NaN where one is missing, or text.

    - ``"air_quality"``: 153 days of New York, 1973: ozone, sun, wind, temperature, with
      holes (Chambers, Cleveland, Kleiner & Tukey 1983).
    - ``"breast_cancer"``: 686 patients, time without recurrence, partly censored (the
      German Breast Cancer Study Group; Royston & Altman 2013).
    - ``"election_panel"``: 1525 voters of the British Election Panel Study, 1997 to
      2001, with the ratings that they gave (Fox & Andersen 2006).
    - ``"grouse_ticks"``: ticks on 403 chicks of red grouse, in broods at locations
      (Elston, Moss, Boulinier, Arrowsmith & Lambin 2001).
    - ``"mauna_loa"``: monthly CO₂ at Mauna Loa, 1988 to 2017, in ppm (NOAA Global
      Monitoring Laboratory).
    - ``"snow_deaths"``, ``"snow_pumps"``, ``"snow_streets"``: John Snow's map of the
      cholera outbreak of 1854 in Soho, as digitised by Dodson & Tobler (1992).

    Args:
        name: One of these.

    Returns:
        Column -> array [N].

    Raises:
        ValueError: There is no such table.
        OSError: It is not in the folder and cannot be downloaded.
    """
    if name not in _FILES:
        raise ValueError(f"name must be one of {sorted(_FILES)}, and is {name!r}.")
    source = _SOURCE + _FILES[name]
    return stored(name, "an array for each column", source, lambda: _download(source))


def _download(source: str) -> dict[str, np.ndarray]:
    rows = list(DictReader(StringIO(fetch(source))))
    names = [name for name in rows[0] if name != "rownames"]
    return {name: _column([row[name] for row in rows]) for name in names}


def _column(values: list[str]) -> np.ndarray:
    """Numbers, NaN where one is missing; unchanged if any of them is not a number."""
    try:
        return np.array([float(v) if v not in ("", "NA") else np.nan for v in values])
    except ValueError:
        return np.array(values)
