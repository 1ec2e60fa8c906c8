"""How Sphinx makes the documentation site; `make docs` runs it.

The source is the whole repository, so that a link leads to the same file here and in a view of the repository.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

import counterveil  # noqa: E402

project = "Counterveil"
author = "The Counterveil authors"
copyright = author  # noqa: A001
version = release = counterveil.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/*.ipynb", "src/counterveil/README.md"]
exclude_patterns = [".*", "build", "dist", "node_modules", "tests", "benchmarks", "vectors", "src/counterveil/*/**"]

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

# Notebooks run under settings of our own, not the user's, and say nothing but errors.
_SETTINGS = tempfile.TemporaryDirectory()
(Path(_SETTINGS.name) / "profile_default").mkdir()
(Path(_SETTINGS.name) / "profile_default" / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n")
os.environ["IPYTHONDIR"] = _SETTINGS.name
logging.getLogger("traitlets").setLevel(logging.WARNING)

smartquotes = False  # options begin with two hyphens
default_role = "literal"  # `name` in a docstring is code
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = True
nitpick_ignore_regex = [("py:.*", ".*")]  # signatures name types of other packages, and our own that are not public

_RETURNED = {"Counterfactual", "Database", "Deployment", "Local", "NoCounterfactual", "Retrieval"}

html_theme = "furo"
html_title = f"Counterveil {release}"
html_static_path, html_css_files = ["static"], ["site.css"]
html_extra_path = ["start"]  # an index.html that leads to the first page
html_copy_source = False


def _anchors(_app: Any, _name: str, source: list[str]) -> None:
    """Make targets of anchors that are written as HTML, so that a link to a missing one is an error."""
    source[0] = re.sub(r'<a id="(\w+)"></a>', r"[]{#\1}", source[0])


def _sentences(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Read what stands behind a parameter's name as a sentence about it, not as its type."""
    lines[:] = re.sub(r"^(\w[\w, ]*) : (.*)$", r"\1\n    \2", "\n".join(lines), flags=re.M).split("\n")


def _signature(_app: Any, what: str, name: str, *_: Any) -> tuple[str, str] | None:
    """Hide the arguments of classes that nobody calls; other names return such objects."""
    return ("", "") if what == "class" and name.rpartition(".")[2] in _RETURNED else None


def _plain(_app: Any, _context: Any, lines: list[str]) -> None:
    """Keep the help of a command from being read as markup: a name that ends in _ is no reference."""
    lines[:] = [re.sub(r"_(?!\w)", r"\_", line) for line in lines]


def setup(app: Any) -> None:
    """Register what is done to every page before it is read, and show diagrams of Mermaid as their text."""
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", _anchors)
    app.connect("autodoc-process-docstring", _sentences, priority=100)  # before napoleon reads it
    app.connect("autodoc-process-signature", _signature)
    app.connect("sphinx-click-process-description", _plain)
