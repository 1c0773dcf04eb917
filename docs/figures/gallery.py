"""The gallery: a thumbnail of each notebook, and the page that shows them.

python docs/figures/gallery.py    writes docs/figures/gallery/*.png and docs/gallery.md

The picture is the last of the notebook, or that of the cell whose first line is
``# thumbnail``.
"""

import base64
import io
import re
from pathlib import Path

import jupytext
from PIL import Image

DOCS = Path(__file__).parent.parent
WIDTH = 480
HEAD = """# Gallery

The notebooks by a picture. Made by `python docs/figures/gallery.py`.

<div class="gallery">
"""
CARD = """<div>

[![{title}](figures/gallery/{name}.png)](../notebooks/{name}.ipynb)

[{title}](../notebooks/{name}.ipynb)

</div>
"""


def picture(notebook) -> Image.Image:
    """The figure that stands for a notebook."""
    chosen = None
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                chosen = output["data"]["image/png"]
        if chosen and cell.source.startswith("# thumbnail"):
            break
    image = Image.open(io.BytesIO(base64.b64decode(chosen))).convert("RGB")
    return image.resize((WIDTH, round(image.height * WIDTH / image.width)))


def card(file: Path) -> str:
    """Writes the thumbnail of a notebook, and returns its entry of the page."""
    notebook = jupytext.read(file)
    (title, *_) = re.findall(r"^# (.+)$", notebook.cells[0].source, re.M)
    thumbnail = picture(notebook).quantize(128)
    thumbnail.save(DOCS / "figures" / "gallery" / f"{file.stem}.png", optimize=True)
    return CARD.format(title=title, name=file.stem)


if __name__ == "__main__":
    (DOCS / "figures" / "gallery").mkdir(exist_ok=True)
    files = sorted((DOCS.parent / "notebooks").glob("[0-9]*.ipynb"))
    cards = "".join(card(file) for file in files)
    (DOCS / "gallery.md").write_text(f"{HEAD}{cards}</div>\n")
