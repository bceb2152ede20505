"""Runs a command in a QEMU guest that has an RDMA device, ``rxe0``: verbs in software ("soft-RoCE"), on a machine without any.

``python guest.py --folder FOLDER [--out OUT] [--limit SECONDS] [COMMAND...]``

It needs x86-64 Debian with apt, and root for apt's lock; nothing is installed: what the system lacks is unpacked in FOLDER, once. The guest
sees the files of this machine as they are here, read-only, below a file system in memory, so that Python and its environments run in it
at their own paths. Debian's UCX, which has verbs, lies above them. OUT is the same folder in both, and what is written there stays.

The status is that of COMMAND, 124 if the guest ran too long, and 77 where there can be none, which a line of stderr explains.
"""

from __future__ import annotations

import argparse
import fcntl
import lzma
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NONE_HERE, TOO_LONG = 77, 124
_APT_SECONDS = 300
_HOST_PACKAGES = ("qemu-system-x86", "busybox-static")
_GUEST_PACKAGES = ("libucx0", "ucx-utils", "libibverbs1", "ibverbs-providers", "librdmacm1", "iproute2")
_MODULES = (
    "virtio_pci", "9pnet_virtio", "9p", "overlay", "crc32_generic", "crc32c_generic", "crct10dif_generic", "dummy", "rdma_rxe", "rdma_ucm",
)  # fmt: skip
_APPLETS = ("sh", "mount", "insmod", "switch_root", "mkdir", "cp", "echo")

_INIT = """#!/bin/sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read module; do insmod /modules/$module || echo "insmod $module failed"; done < /modules/list
how=trans=virtio,version=9p2000.L,msize=524288
mount -t 9p -o ro,$how,cache=loose machine /machine; mount -t 9p -o ro,$how,cache=loose extra /extra
mount -t tmpfs -o size=75% tmpfs /over; mkdir /over/up /over/work
mount -t overlay -o lowerdir=/extra:/machine,upperdir=/over/up,workdir=/over/work overlay /new
mkdir -p /new/proc /new/sys /new/dev /new/tmp /new/run "/new$OUT"
mount -t proc proc /new/proc; mount -t sysfs sys /new/sys; mount -t devtmpfs dev /new/dev; mkdir -p /new/dev/shm /new/dev/pts
mount -t tmpfs tmpfs /new/dev/shm; mount -t devpts devpts /new/dev/pts; mount -t tmpfs tmpfs /new/run
mkdir -p "/new$OUT"; mount -t 9p -o $how,cache=none out "/new$OUT"; cp /bin/busybox /new/run/busybox
exec switch_root /new /bin/sh "$OUT/in_guest.sh"
"""
"""The first process of the guest, whose kernel hands OUT down from its command line."""
_IN_GUEST = """export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount --bind "$OUT/cpuinfo" /proc/cpuinfo
ulimit -l unlimited; cd /tmp; ip link set lo up
ip link add rdma0 type dummy; ip addr add 10.9.0.1/24 dev rdma0; ip link set rdma0 up
rdma link add rxe0 type rxe netdev rdma0 && echo "guest: rxe0 is up after $(cut -d' ' -f1 /proc/uptime) s"
sh "$OUT/command.sh"; echo $? > "$OUT/status"; sync; /run/busybox poweroff -f
"""
"""Compiled code is kept by what the processor says it is, so the guest says what this machine does; for what its emulated one
cannot do, the caller has nothing compiled (NUMBA_CPU_NAME)."""


class NoGuest(Exception):
    """There can be no guest here; says why."""


class Guest:
    """What a guest consists of, in a folder that is made once.

    Raises
    ------
    NoGuest
        It cannot be made here.
    """

    def __init__(self, folder: Path) -> None:
        if platform.machine() != "x86_64" or shutil.which("apt-get") is None or os.geteuid() != 0:
            raise NoGuest("a guest with soft-RoCE takes x86-64 Debian, apt and root")
        self.folder = folder
        self.tools, self.extra, self.kernel = folder / "tools", folder / "extra", folder / "kernel"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for made, make in ((self.tools, self._make_tools), (self.extra, self._make_extra), (self.kernel, self._make_kernel)):
                if not (made / "done").exists():
                    shutil.rmtree(made, ignore_errors=True)
                    make()
                    (made / "done").touch()

    def _make_tools(self) -> None:
        """Unpack what runs on this machine."""
        self._fetch(self.tools, *_HOST_PACKAGES)

    def _make_extra(self) -> None:
        """Unpack what the guest has above this machine's files, whose folders are links where the system's are."""
        self._fetch(self.extra, *_GUEST_PACKAGES)
        for name in ("bin", "sbin", "lib", "lib64"):
            found, merged = self.extra / name, self.extra / "usr" / name
            merged.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                shutil.copytree(found, merged, symlinks=True, dirs_exist_ok=True)
                shutil.rmtree(found)
            found.symlink_to(f"usr/{name}")

    def _fetch(self, into: Path, *packages: str) -> None:
        debs = self.folder / "debs"
        shutil.rmtree(debs, ignore_errors=True)
        (debs / "partial").mkdir(parents=True)
        options = ["--download-only", "--reinstall", "--no-install-recommends", "-o", f"Dir::Cache::archives={debs}/"]
        _apt("apt-get", "install", "-y", "-qq", *options, *packages)
        _unpack(debs, into)

    def _make_kernel(self) -> None:
        """Unpack a kernel with modules (that of clouds has none for RDMA), and pack those that are needed for its start."""
        debs = self.folder / "debs"
        shutil.rmtree(debs, ignore_errors=True)
        debs.mkdir()
        _, _, depends = _apt("apt-cache", "depends", "linux-image-amd64").partition("Depends: ")
        _apt("apt-get", "download", "-qq", depends.split()[0], cwd=debs)
        whole = self.folder / "unpacked"
        shutil.rmtree(whole, ignore_errors=True)
        _unpack(debs, whole)
        (modules,) = whole.glob("**/lib/modules/*")
        subprocess.run([self._busybox, "depmod", "-b", whole, modules.name], check=True)
        (image,) = whole.glob("boot/vmlinuz-*")
        self.kernel.mkdir()
        (self.kernel / "image").write_bytes(_bare(image.read_bytes()))
        (self.kernel / "initrd").write_bytes(b"".join(_archive(_first_files(modules, self._busybox))))
        shutil.rmtree(whole)
        shutil.rmtree(debs)

    @property
    def _busybox(self) -> Path:
        for place in (self.tools / "bin", self.tools / "usr" / "bin", Path("/bin")):
            if (place / "busybox").exists():
                return place / "busybox"
        raise NoGuest("busybox-static has no busybox")

    def run(self, out: Path, command: list[str], limit: float) -> int:
        """Boot, run a command, and power off. Returns its status."""
        out = out.resolve()
        (out / "in_guest.sh").write_text(_IN_GUEST)
        (out / "command.sh").write_text(shlex.join(command))
        (out / "cpuinfo").write_bytes(Path("/proc/cpuinfo").read_bytes())
        status = out / "status"
        status.unlink(missing_ok=True)
        libraries = ":".join(str(self.tools / place / "x86_64-linux-gnu") for place in ("usr/lib", "lib"))
        try:
            subprocess.run(
                self._line(out),
                env={**os.environ, "LD_LIBRARY_PATH": libraries},
                stdin=subprocess.DEVNULL,
                timeout=limit,
                check=True,
            )
        except subprocess.TimeoutExpired:
            return TOO_LONG
        return int(status.read_text() or 1) if status.exists() else 1

    def _line(self, out: Path) -> list[str]:
        """QEMU's command line. Everything is emulated: machines in the cloud rarely let others run in them otherwise."""
        shared = [("machine", Path("/"), ",readonly=on,multidevs=remap"), ("extra", self.extra, ",readonly=on"), ("out", out, "")]
        places = (self.tools / "usr/share", Path("/usr/share"))
        return [
            shutil.which("qemu-system-x86_64") or str(self.tools / "usr/bin/qemu-system-x86_64"),
            *(word for place in places for name in ("qemu", "seabios") for word in ("-L", str(place / name))),
            *("-accel", "tcg,thread=multi", "-cpu", "max", "-M", "q35", "-m", "3072", "-smp", "2"),
            *("-nodefaults", "-nographic", "-monitor", "none", "-no-reboot"),
            *("-serial", "stdio", "-kernel", str(self.kernel / "image"), "-initrd", str(self.kernel / "initrd")),
            *("-append", f"console=ttyS0 quiet panic=-1 mitigations=off nokaslr OUT={out}"),
            *(
                word
                for name, place, how in shared
                for word in (
                    *("-fsdev", f"local,id={name},path={place},security_model=none{how}"),
                    *("-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"),
                )
            ),
        ]


def _apt(*words: str, cwd: Path | None = None) -> str:
    try:
        return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=_APT_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise NoGuest(f"packages of Debian cannot be had: {' '.join(words[:2])}: {said[-1] if said else error}") from error


def _unpack(debs: Path, into: Path) -> None:
    into.mkdir(exist_ok=True)
    for deb in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", deb, into], check=True)


def _bare(image: bytes) -> bytes:
    """The kernel as it was before it was packed, which an emulated processor would take seconds to undo."""
    at = image.find(b"\xfd7zXZ\0")
    bare = lzma.LZMADecompressor().decompress(image[at:]) if at >= 0 else b""
    return bare if bare[:4] == b"\x7fELF" else image


def _first_files(modules: Path, busybox: Path) -> Iterator[tuple[str, int, bytes]]:
    """What the kernel starts with: path, mode and bytes of each file."""
    for name in ("bin", "dev", "proc", "sys", "machine", "extra", "over", "new", "modules"):
        yield name, stat.S_IFDIR | 0o755, b""
    yield "bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes()
    for applet in _APPLETS:
        yield f"bin/{applet}", stat.S_IFLNK | 0o777, b"busybox"
    yield "init", stat.S_IFREG | 0o755, _INIT.encode()
    order = _in_order(modules)
    for path in order:
        data = (modules / path).read_bytes()
        yield f"modules/{_name(path)}.ko", stat.S_IFREG | 0o644, lzma.decompress(data) if path.endswith(".xz") else data
    yield "modules/list", stat.S_IFREG | 0o644, "".join(f"{_name(path)}.ko\n" for path in order).encode()


def _in_order(modules: Path) -> list[str]:
    """Paths of the modules that are needed, each behind those that it needs."""
    needs = {path: after.split() for path, _, after in (line.partition(":") for line in (modules / "modules.dep").open())}
    paths, order = {_name(path): path for path in needs}, dict[str, None]()

    def add(path: str) -> None:
        for needed in needs[path]:
            add(needed)
        order[path] = None

    for wanted in _MODULES:
        if wanted in paths:
            add(paths[wanted])
    return list(order)


def _name(path: str) -> str:
    return os.path.basename(path).split(".ko")[0].replace("-", "_")


def _archive(files: Iterator[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """Files as the kernel unpacks them (cpio, "newc")."""
    console = ("dev/console", stat.S_IFCHR | 0o600, b"")
    for number, (path, mode, data) in enumerate([*files, console, ("TRAILER!!!", 0, b"")], 1):
        name, device = path.encode() + b"\0", (5, 1) if path == console[0] else (0, 0)
        head = b"070701" + b"".join(b"%08X" % word for word in (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0))
        for part in (head + name, data):
            yield part + b"\0" * (-len(part) % 4)


def main() -> int:
    """Run the command that the arguments say in a guest; without one, only have everything that takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--limit", type=float, default=150)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        guest = Guest(options.folder.resolve())
    except NoGuest as reason:
        print(reason, file=sys.stderr)
        return NONE_HERE
    return guest.run(options.out, options.command, options.limit) if options.command else 0


if __name__ == "__main__":
    sys.exit(main())
