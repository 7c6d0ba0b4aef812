"""Disks of a test's own: loop devices and file systems that only this process and its children see. Needs root."""

import ctypes
import os
import pathlib
import subprocess

CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 0x4000 | 0x40000

_libc = ctypes.CDLL(None, use_errno=True)

# Smallest images that mkfs accepts, in MiB; sparse, so that they take what is written.
SIZES = {"ext4": 64, "xfs": 320, "btrfs": 160}


def mounts_are_private():
    """From here on mounts are seen by this process and its children alone, and go with them."""
    return _libc.unshare(CLONE_NEWNS) == 0 and _libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout.strip()


class Disk:
    """A file system on a loop device on a file, mounted; `case` takes it away at its end."""

    def __init__(self, case, name, kind="ext4", sector=512, size_mib=None):
        self.image = case.path(f"{name}.image")
        self.folder = case.path(name)
        self.folder.mkdir()
        with open(self.image, "wb") as file:
            file.truncate((size_mib or SIZES[kind]) << 20)
        device = run("losetup", "--find", "--show", "--sector-size", sector, self.image)
        try:
            run(f"mkfs.{kind}", "-q", *(["-F"] if kind == "ext4" else []), device)
            run("mount", device, self.folder)
        finally:
            run("losetup", "--detach", device)  # while it is mounted: as soon as it no longer is, also if this process is killed
        case.addCleanup(run, "umount", "--lazy", self.folder)

    def lose_data(self):
        """What the device holds is gone: reads and writes fail, as those of a disk that was pulled out."""
        os.truncate(self.image, 0)


def mount_tmpfs(case, name, options="size=64m"):
    folder = case.path(name)
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)
    case.addCleanup(run, "umount", "--lazy", folder)
    return folder


def mount_overlay(case, name):
    parts = {part: case.path(f"{name}.{part}") for part in ("lower", "upper", "work")}
    for folder in (*parts.values(), case.path(name)):
        folder.mkdir()
    run("mount", "-t", "overlay", "-o", ",".join(f"{part}dir={path}" for part, path in parts.items()), "overlay", case.path(name))
    case.addCleanup(run, "umount", "--lazy", case.path(name))
    return case.path(name)


def usable_kinds():
    """Of the file systems that mkfs and the kernel have here."""
    known = pathlib.Path("/proc/filesystems").read_text().split()
    return [kind for kind in SIZES if kind in known]


def swap_descriptors(pid):
    """Paths through which the unnamed files of a running process can be opened."""
    found = []
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.endswith("(deleted)") and "/#" in target:
            found.append(link)
    return found
