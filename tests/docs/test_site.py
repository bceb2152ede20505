"""The site of the documentation, as a reader gets it: built without a warning, every link leads somewhere, every public name is in it."""

import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install '.[docs]'")

DOCS = Path(__file__).parents[2] / "docs"


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
    built: Path = tmp_path_factory.mktemp("site")
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
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
    images = [(path.name, image) for path, page in pages.items() for image in page.images]
    assert [(name, image.get("src")) for name, image in images if not image.get("alt")] == []


def test_every_public_name_of_mpi_is_in_the_reference(site: Path) -> None:
    from ncclx_mpi import MPI

    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    found = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    public = [f"ncclx_mpi.MPI.{name}" for name in vars(MPI) if not name.startswith("_")]
    classes = [each for each in vars(MPI).values() if isinstance(each, type)]
    members = [f"ncclx_mpi.MPI.{each.__name__}.{name}" for each in classes for name in vars(each) if not name.startswith("_")]
    assert [name for name in (*public, *members) if name not in found] == []


def test_nothing_of_a_page_comes_from_elsewhere(pages: dict[Path, Page]) -> None:
    for page in pages.values():
        assert [link for link in page.links if link.startswith("//")] == []
