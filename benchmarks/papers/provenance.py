"""With what a number was made: packages and processor, no names of machines."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("svgp_ppl", "jax", "numpyro", "blackjax", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Of Python and the packages that compute."""
    return {"python": platform.python_version()} | {p: version(p) for p in PACKAGES}


def machine() -> dict[str, str | int]:
    """Cores and model of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if "model name" in line]
    model = models[0] if models else platform.processor()
    return {"cores": os.cpu_count() or 1, "processor": model}
