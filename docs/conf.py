"""Sphinx: ``pip install '.[docs]' && sphinx-build -W docs docs/_build``; ``-t online``: with links to NumPy, mpi4py and Python."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "_extensions"), str(Path(__file__).parent)]

import ncclx_mpi
from ncclx_mpi import rc

rc.initialize = False  # the names of MPI are wanted, no communication

project = "ncclx_mpi"
copyright = "2026, the ncclx_mpi developers"
version = release = ncclx_mpi.__version__

extensions = ["myst_nb", "sphinx_design", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx", "reference"]
exclude_patterns = ["_build", "jupyter_execute", "_extensions", "snippets", "inventories"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks show what they did when docs/run_notebooks.py ran them, which a test repeats
nb_merge_streams = True

# Without the tag nothing is fetched: a build must not depend on three servers. What is linked to is in small inventories here.
others = {
    "python": "https://docs.python.org/3",
    "numpy": "https://numpy.org/doc/stable",
    "mpi4py": "https://mpi4py.readthedocs.io/en/stable",
}
inventories = Path(__file__).parent / "inventories"
intersphinx_mapping = {
    name: (url, None if tags.has("online") else str(inventories / f"{name}.txt"))  # noqa: F821 - Sphinx defines it
    for name, url in others.items()
}

autodoc_docstring_signature = False  # that is without types; reference.py takes it away
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    name: f"~ncclx_mpi.typing.{name}"
    for name in ("Buffer", "BufSpec", "BufSpecB", "BufSpecV", "BufSpecW", "TargetSpec", "InPlace", "Stream")
}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = False
napoleon_use_rtype = False

highlight_language = "none"
html_theme = "pydata_sphinx_theme"
html_title = f"ncclx_mpi {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "ncclx_mpi"},
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "show_toc_level": 2,
}
