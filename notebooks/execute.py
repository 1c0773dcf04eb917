"""Execute the percent scripts beside this file and write the paired notebooks.

python notebooks/execute.py [names of scripts]
"""

import sys
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient

here = Path(__file__).parent
for script in map(Path, sys.argv[1:]) if sys.argv[1:] else here.glob("[0-9]*.py"):
    began = time.perf_counter()
    notebook = jupytext.read(script)
    NotebookClient(
        notebook, timeout=1800, resources={"metadata": {"path": here}}
    ).execute()
    for cell in notebook.cells:
        # Time stamps and warnings on stderr would change with every run.
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    jupytext.write(notebook, script.with_suffix(".ipynb"))
    print(f"{script.name}: {time.perf_counter() - began:.0f} s")
