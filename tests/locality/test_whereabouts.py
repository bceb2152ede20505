"""Where hosts are: files of three kinds, what Slurm says, and what is wrong with them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclx_mpi.locality import keys, switches, whereabouts
from ncclx_mpi.locality.switches import matches
from ncclx_mpi.simulate import network

CLUSTER = """
# Slurm's, of two halls
SwitchName=leaf1 Nodes=n[01-16] LinkSpeed=100
SwitchName=leaf2 Nodes=n[17-32],login
switchname=leaf3 nodes=m[1-4]
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=spine2 Switches=leaf3
SwitchName=top Switches=spine[1-2]
SwitchName=beyond Switches=top
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "topology"


def read(file: Path, text: str, first_rank: int = 0, *hosts: str) -> dict[str, str]:
    file.write_text(text)
    return whereabouts.read(file, first_rank, hosts or ("n03",))


def test_names_of_this_host(file: Path) -> None:
    assert read(file, "rack = r 12 # next to the door\n\nzone=z3\ndc = d1\n") == {"rack": "r 12", "zone": "z3", "dc": "d1"}
    assert read(file, "zone = z3") == {"zone": "z3"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "DEVICE_NAME=host1.pci2\nDEVICE_RACK_SERIAL=108\nDEVICE_BACKEND_NETWORK_TOPOLOGY=pci2/pci2.z085//rtsw049.c085\n",
            {"dc": "pci2", "zone": "pci2.z085", "rack": "rtsw049.c085"},
        ),
        ("DEVICE_RACK_SERIAL=108\nDEVICE_BACKEND_NETWORK_TOPOLOGY=/nha1.1D//rtsw098\n", {"zone": "nha1.1D", "rack": "rtsw098"}),
        ("DEVICE_RACK_SERIAL=8\nDEVICE_BACKEND_NETWORK_TOPOLOGY=nao5/nao5.z1/nao5.z1.u3\n", {"dc": "nao5", "zone": "nao5.z1", "rack": "8"}),
        ("DEVICE_REGION=iowa\nDEVICE_SUBNET=\nSHARD_SEED=7\nDEVICE_RACK_SERIAL=108\nDEVICE_BACKEND_NETWORK_TOPOLOGY=\n", {"rack": "108"}),
        ("DEVICE_NAME=host1\n", {}),
    ],
)  # fmt: skip
def test_the_file_of_ncclx(file: Path, text: str, found: dict[str, str]) -> None:
    assert read(file, text) == found


CLUSTER_OF_NUMBERS = "node.ranks = 2\nrack.nodes = 3 # six ranks\nzone.racks = 2\nrack.latency = 2\neager = 8K\n"


@pytest.mark.parametrize(("first", "rack", "zone"), [(0, "0", "0"), (4, "0", "0"), (6, "1", "0"), (12, "2", "1")])
def test_hosts_by_number(file: Path, first: int, rack: str, zone: str) -> None:
    assert read(file, CLUSTER_OF_NUMBERS, first) == {"rack": rack, "zone": zone}


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 40), st.integers(0, 40))
def test_ranks_are_as_far_apart_as_the_simulator_has_it(tmp_path_factory: Any, sizes: list[int], one: int, other: int) -> None:
    """The same file says the same to both."""
    text = "".join(f"{part} = {size}\n" for part, size in zip(keys.PARTS, sizes, strict=False))
    file = tmp_path_factory.getbasetemp() / "for_both"
    names = [read(file, text, rank // sizes[0] * sizes[0]) for rank in (one, other)]
    level = network.read(text.splitlines()).level(one, other)
    known = keys.LEVELS[1 : len(sizes)]
    assert [set(each) for each in names] == [set(known)] * 2
    assert [names[0][name] == names[1][name] for name in known] == [level <= index for index, _ in enumerate(known, 1)]


def test_a_file_for_both_readers(file: Path) -> None:
    text = "rack = r1\nnode.bandwidth = 20\nmessage = 0.5\n"
    assert read(file, text) == {"rack": "r1"}
    assert network.read(text.splitlines()).message == 0.5


def test_files_of_the_page() -> None:
    snippets = Path(__file__).parents[2] / "docs" / "snippets"
    assert whereabouts.read(snippets / "this_host.txt", 0, ()) == {"rack": "r12", "zone": "z3", "dc": "d1"}
    assert [whereabouts.read(snippets / "hosts_by_number.txt", rank, ()) for rank in (2, 4)] == [{"rack": "0"}, {"rack": "1"}]


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        (("n03",), {"rack": "leaf1", "zone": "spine1", "dc": "top"}),
        (("login.cluster.org", "login"), {"rack": "leaf2", "zone": "spine1", "dc": "top"}),
        (("m4",), {"rack": "leaf3", "zone": "spine2", "dc": "top"}),
        (("n3",), {}),
        (("n33",), {}),
        (("laptop",), {}),
    ],
)
def test_topology_conf(file: Path, hosts: tuple[str, ...], found: dict[str, str]) -> None:
    assert read(file, CLUSTER, 0, *hosts) == found


def test_blocks_are_racks(file: Path) -> None:
    assert read(file, "BlockName=b1 Nodes=n[01-08]\nBlockName=b2 Nodes=n[09-16]\nBlockSizes=8,16\n", 0, "n09") == {"rack": "b2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rack\n", "line 1: 'rack' says nothing about a network; keys are node.ranks"),
        ("\n# rack\nrock = r1\n", "line 3: 'rock = r1' says nothing"),
        ("rack =\n", "line 1: rack has no name"),
        ("", "no line says where a host is; keys are dc, zone, rack"),
        ("# nothing\n", "no line says where a host is"),
        ("rack = r1\nnode.ranks = 2\nrack.nodes = 2\n", "in several ways"),
        ("rack = r1\nDEVICE_RACK_SERIAL=7\n", "in several ways"),
        ("node.ranks = 2\nrack.nodes = two\n", "line 2: rack.nodes has to be a whole number, not 'two'"),
        ("node.ranks = -2\n", "line 1: node.ranks has to be a whole number, not '-2'"),
        ("DEVICE_BACKEND_NETWORK_TOPOLOGY=here/there\n", "line 1: DEVICE_BACKEND_NETWORK_TOPOLOGY has to be dc/zone//switch, not 'here"),
        ("SwitchName=s1 Nodes=n[01-03]\nNodes=n04\n", "line 2: 'Nodes=n04' describes no switch: SwitchName="),
        ("SwitchName=s1\n", "line 1: 'SwitchName=s1' describes no switch"),
        ("SwitchName=s1 Hosts=n03\n", "no switch: SwitchName=s0 Nodes=host[01-16] or Switches=s[1-4]; hosts is no key of it"),
        ("SwitchName=s1 Nodes=n03\nSwitchName=s2 Nodes=n[01-04]\n", "line 2: n03 is a node of s2, and of s1"),
        ("SwitchName=s1 Nodes=n03\nSwitchName=s2 Switches=s1\nSwitchName=s3 Switches=s1\n", "line 3: switch s1 is below s3, and below s2"),
        ("SwitchName=s1 Nodes=n03\nSwitchName=s2 Switches=s[1,3]\nSwitchName=s3 Switches=s2\n", "line 2: switch s2 is above itself"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_with_its_name_and_line(file: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(file, text)
    assert str(caught.value).startswith(f"NCCLX_MPI_TOPOLOGY_FILE={file}: ") and said in str(caught.value)


def test_files_that_cannot_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLX_MPI_TOPOLOGY_FILE", str(file))
    with pytest.raises(FileNotFoundError, match=str(file)):
        whereabouts.find()
    file.write_bytes(b"rack = \xff\n")
    with pytest.raises(ValueError, match="no text in UTF-8"):
        whereabouts.find()
    monkeypatch.setattr(whereabouts, "_MOST_BYTES", 4)
    with pytest.raises(ValueError, match="more than 0 MiB"):
        whereabouts.find()


@pytest.mark.parametrize(
    ("address", "pattern", "found"),
    [
        ("s3.s1.leaf7.n12", "switch.switch.switch.node", {"rack": "leaf7", "zone": "s1", "dc": "s3"}),
        ("top.s3.s1.leaf7.n12", "switch.switch.switch.switch.node", {"rack": "leaf7", "zone": "s1", "dc": "s3"}),
        ("leaf7.n12.cluster.org", "switch.node", {"rack": "leaf7"}),
        ("b4.n12", "block.node", {"rack": "b4"}),
        ("n12", "node", {}),
    ],
)
def test_what_slurm_tells_a_task(address: str, pattern: str, found: dict[str, str]) -> None:
    environ = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    assert switches.names_for_task(environ) == found
    assert whereabouts.find(0, environ).names == found


@pytest.mark.parametrize(
    ("address", "pattern"), [("n12", "switch.node"), ("s1.n12", "node.switch"), ("s1..n12", "switch.switch.node")]
)
def test_what_slurm_cannot_mean(address: str, pattern: str) -> None:
    with pytest.raises(
        ValueError, match=f"SLURM_TOPOLOGY_ADDR='{address}' is no address of the form SLURM_TOPOLOGY_ADDR_PATTERN='{pattern}'"
    ):
        whereabouts.find(0, {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern})


def test_a_file_comes_before_slurm(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"SLURM_TOPOLOGY_ADDR": "s1.n12", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node", "SLURMD_NODENAME": "n17"}
    assert whereabouts.find(0, environ).source == "SLURM_TOPOLOGY_ADDR=s1.n12"
    file.write_text(CLUSTER)
    monkeypatch.setenv("NCCLX_MPI_TOPOLOGY_FILE", str(file))
    found = whereabouts.find(0, environ)
    assert found.names["rack"] == "leaf2" and found.source == f"NCCLX_MPI_TOPOLOGY_FILE={file}"
    assert whereabouts.names_of_host(environ)[:2] == ["n17", socket.gethostname()]


def test_nobody_says_anything() -> None:
    found = whereabouts.find(0, {})
    assert found.names == {} and found.source.startswith("nobody says where hosts are: NCCLX_MPI_TOPOLOGY_FILE")


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(1, 3), st.booleans())
def test_lists_of_hosts(first: int, last: int, number: int, width: int, two: bool) -> None:
    """As spelled out: all numbers, with the zeros that the first one has."""
    text = f"{first:0{width}}-{last}"
    hosts = f"x,rack[{text},99]n[1-2]" if two else f"x,rack[{text},99]"
    spelled = [f"{each:0{len(f'{first:0{width}}')}}" for each in range(first, last + 1)] + ["99"]
    names = {"x"} | {f"rack{each}{end}" for each in spelled for end in (("n1", "n2") if two else ("",))}
    for candidate in (
        f"rack{number}",
        f"rack{number:02}",
        f"rack{number}n1",
        f"rack{number:03}n2",
        "x",
        "rack99",
        "rack",
        f"rack{number}n3",
    ):
        assert matches(hosts, candidate) == (candidate in names)


@pytest.mark.parametrize("hosts", ["", "n[", "n[1", "n[a-b]", "n[1-x]", "n[]"])
def test_a_list_that_is_none_has_no_host(hosts: str) -> None:
    assert not matches(hosts, "n1")
