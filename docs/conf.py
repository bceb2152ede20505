"""Sphinx: ``pip install '.[docs]' && sphinx-build -W docs docs/_build``."""

project = "ncclx_mpi"
copyright = "2026, the ncclx_mpi developers"
extensions = ["myst_parser"]
exclude_patterns = ["_build", "snippets"]
html_theme = "alabaster"
suppress_warnings = ["myst.xref_missing"]  # links to files of the repository, which are no pages
