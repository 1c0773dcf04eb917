"""The gallery: a thumbnail of each notebook, and the page that shows them.

python docs/figures/gallery.py    writes docs/figures/gallery/*.png and docs/gallery.md

The picture is the last of the notebook, unless ``CHOSEN`` names another.
"""

import base64
import io
import re
from pathlib import Path

import jupytext
from PIL import Image

DOCS = Path(__file__).parent.parent
WIDTH = 480
CHOSEN = {
    "01_first_model": -2,
    "05_diagnosing_mcmc": 0,
    "11_ordinal_ratings": 2,
    "13_latent_inputs": 0,
}
HEAD = """# Gallery

A picture from every notebook. This page is made by `python docs/figures/gallery.py`.

<div class="gallery">
"""
CARD = """<div>

[![{title}](figures/gallery/{name}.png)](../notebooks/{name}.ipynb)

[{title}](../notebooks/{name}.ipynb)

</div>
"""


def picture(notebook, place: int) -> Image.Image:
    """A figure of the notebook, by its place among them."""
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    found = [o.data["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    image = Image.open(io.BytesIO(base64.b64decode(found[place]))).convert("RGB")
    return image.resize((WIDTH, round(image.height * WIDTH / image.width)))


def card(file: Path) -> str:
    """Writes the thumbnail of a notebook, and returns its entry of the page."""
    notebook = jupytext.read(file)
    (title, *_) = re.findall(r"^# (.+)$", notebook.cells[0].source, re.M)
    thumbnail = picture(notebook, CHOSEN.get(file.stem, -1)).quantize(128)
    thumbnail.save(DOCS / "figures" / "gallery" / f"{file.stem}.png", optimize=True)
    return CARD.format(title=title, name=file.stem)


if __name__ == "__main__":
    (DOCS / "figures" / "gallery").mkdir(exist_ok=True)
    files = sorted((DOCS.parent / "notebooks").glob("[0-9]*.ipynb"))
    cards = "".join(card(file) for file in files)
    (DOCS / "gallery.md").write_text(f"{HEAD}{cards}</div>\n")
