"""The site of the documentation, as a reader gets it: built without a warning, every link leads somewhere, every public name is in it."""

import configparser
import functools
import http.server
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install '.[docs]'")

DOCS = Path(__file__).parents[2] / "docs"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DESKTOP, PHONE = 1280, 390
LOOK = """<body><pre id="seen"></pre><script>
const look = async () => {
    const seen = [];
    for (const [width, page] of %s) {
        const frame = document.createElement("iframe");
        frame.style.width = width + "px";
        frame.style.height = "800px";
        frame.src = page;
        document.body.append(frame);
        await new Promise(done => frame.onload = done);
        const its = frame.contentDocument;
        const broken = [...its.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src);
        seen.push([width, page, its.documentElement.scrollWidth, broken]);
        frame.remove();
    }
    document.getElementById("seen").textContent = JSON.stringify(seen);
};
look();
</script></body>"""
"""Opens pages in frames of a width, and writes how wide each becomes, and which pictures it cannot show."""


BLOCK = """import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in %r:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
"""Makes modules absent from a Python that finds this as sitecustomize."""


def brought(*extras: str) -> set[str]:
    """Names of the packages that an installation brings, with what these need in turn."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    said = configparser.ConfigParser()
    said.read(DOCS.parent / "setup.cfg")
    texts = [said["options"]["install_requires"], *(said["options.extras_require"][extra] for extra in extras)]
    wanted = [Requirement(line) for text in texts for line in text.split("\n") if line]
    found: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in found and not requirement.extras:
            continue
        found.add(name)
        of_extras = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
        further = map(Requirement, importlib.metadata.requires(name) or [])
        wanted += [each for each in further if each.marker is None or any(map(each.marker.evaluate, of_extras))]
    return found


class Page(HTMLParser):
    """What a page refers to, and what in it can be referred to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.images: list[dict[str, str | None]] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.add(given.get("id") or "")
        self.links |= {link for link in (given.get("href"), given.get("src")) if link}
        if tag == "img":
            self.images.append(given)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with what ``pip install '.[docs]'`` brings, and nothing else that is here."""
    from packaging.utils import canonicalize_name

    built: Path = tmp_path_factory.mktemp("site")
    there = brought("docs") | {"ncclx-mpi", "pip", "setuptools"}
    absent = {
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if there.isdisjoint(map(canonicalize_name, packages))
    }
    (built / "sitecustomize.py").write_text(BLOCK % absent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(built), os.environ.get("PYTHONPATH"))))}
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        str(built / "doctrees"),
        str(DOCS),
        str(built / "html"),
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return built / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}


def test_no_internal_link_is_broken(pages: dict[Path, Page]) -> None:
    assert len(pages) > 30
    broken = []
    for path, page in pages.items():
        for link in page.links:
            where = urlsplit(link)
            if where.scheme or where.netloc:
                continue
            target = (path.parent / unquote(where.path)).resolve() if where.path else path
            its = pages.get(target)
            is_there = target.exists() and (not where.fragment or its is None or unquote(where.fragment) in its.anchors)
            if not is_there:
                broken.append(f"{path.name}: {link}")
    assert broken == []


def test_every_picture_says_what_it_shows(pages: dict[Path, Page]) -> None:
    images = [(path.name, image.get("src") or "", image.get("alt") or "") for path, page in pages.items() for image in page.images]
    assert [(name, source) for name, source, said in images if not said] == []
    assert [(name, source) for name, source, said in images if said == source] == [], (
        "a figure of a notebook without words of its own"
    )


def test_notebooks_are_pages_with_what_their_cells_showed(site: Path) -> None:
    for notebook in (DOCS / "notebooks").glob("*.ipynb"):
        shown = (site / "notebooks" / f"{notebook.stem}.html").read_text()
        cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
        outputs = [output for cell in cells for output in cell["outputs"]]
        figures = sum("image/png" in output.get("data", {}) for output in outputs)
        assert shown.count('class="cell_input ') == len(cells)
        assert shown.count('class="cell_output ') == sum(bool(cell["outputs"]) for cell in cells)
        assert shown.count("<img ") == figures


def test_every_public_name_of_mpi_is_in_the_reference(site: Path) -> None:
    from ncclx_mpi import MPI

    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    found = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    public = [f"ncclx_mpi.MPI.{name}" for name in dir(MPI) if not name.startswith("_")]
    classes = [each for each in (getattr(MPI, name) for name in dir(MPI)) if isinstance(each, type)]
    members = [f"ncclx_mpi.MPI.{each.__name__}.{name}" for each in classes for name in vars(each) if not name.startswith("_")]
    assert [name for name in (*public, *members) if name not in found] == []


def test_what_a_build_leaves_is_no_page(tmp_path: Path) -> None:
    """The notebooks' files are written beside the folder of the site: the second build found pages that no page leads to."""
    from sphinx.project import Project

    excluded = re.search(r"^exclude_patterns = (\[.*\])$", (DOCS / "conf.py").read_text(), re.MULTILINE)
    assert excluded
    for name in ("page.md", "_build/left.md", "jupyter_execute/notebooks/first_steps.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert Project(tmp_path, [".md", ".ipynb"]).discover(json.loads(excluded[1])) == {"page"}


def test_nothing_of_a_page_comes_from_elsewhere(pages: dict[Path, Page]) -> None:
    for page in pages.values():
        assert [link for link in page.links if link.startswith("//")] == []


def test_links_lead_to_what_python_numpy_and_mpi4py_say(pages: dict[Path, Page]) -> None:
    links = {link for page in pages.values() for link in page.links}
    assert "https://docs.python.org/3/library/collections.abc.html#collections.abc.Sequence" in links
    assert "https://numpy.org/doc/stable/reference/generated/numpy.ndarray.html#numpy.ndarray" in links
    theirs = "https://mpi4py.readthedocs.io/en/stable/reference/mpi4py.MPI"
    assert {f"{theirs}.{name}.html#mpi4py.MPI.{name}" for name in ("Comm", "Win", "File")} <= links


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Tells nobody what is asked for."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_no_page_is_wider_than_its_window(site: Path, address: str, pages: dict[Path, Page]) -> None:
    """On a phone none, on a desktop those that are made differently."""
    names = sorted(str(path.relative_to(site.resolve())) for path in pages if path.name not in ("genindex.html", "search.html"))
    wide = ["index.html", "tutorials/halo_exchange.html", "notebooks/halo_exchange.html", "explanation/speed.html"]
    wide += ["reference/mpi/communicators.html", "reference/settings.html"]
    wanted = [*((DESKTOP, name) for name in wide), *((PHONE, name) for name in names)]
    (site / "look.html").write_text(LOOK % json.dumps(wanted))
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1400,1000",
        "--virtual-time-budget=600000",
        "--dump-dom",
    ]
    done = subprocess.run(
        [str(CHROMIUM), *options, f"{address}/look.html"], capture_output=True, text=True, timeout=120, check=False
    )
    found = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout)
    assert found, done.stderr
    seen = json.loads(found[1].replace("&amp;", "&"))
    assert [tuple(each[:2]) for each in seen] == wanted
    assert [(page, is_now) for width, page, is_now, _ in seen if is_now > width] == []
    assert [(page, broken) for _, page, _, broken in seen if broken] == []
