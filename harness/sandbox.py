"""What a worker may not do: write outside its folder, reach other processes or the network, fill the disk.

The kernel of the operating system enforces it: Landlock (see landlock(7)) and resource limits. Entered
once, before any candidate is loaded; it holds for every process that the candidate starts and cannot be left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path

# A file that a candidate writes may grow to this size, and all in its folder together to this one.
FILE_BYTES = 8 << 30
FOLDER_BYTES = 16 << 30
# Compilers start dozens of processes; nothing honest starts this many.
PROCESSES = 512

# From <linux/landlock.h>; the numbers of the calls are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
# Removing and making of every kind, and moving between folders.
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 14))
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
# The first version of Landlock that knows each.
_REFER_SINCE, _TRUNCATE_SINCE, _NETWORK_SINCE, _SCOPES_SINCE = 2, 3, 4, 6
_PR_SET_NO_NEW_PRIVS = 38

# Besides its own folder: devices that take writes from anyone, the GPU's, and what describes itself.
_WRITABLE_FILES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_WRITABLE_PATTERNS = ("nvidia*", "nvidia-caps/*", "dri/*")


@dataclass(frozen=True)
class Protection:
    """One thing that keeps a candidate from harm, and whether it is at work on this machine."""

    name: str
    active: bool
    detail: str


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [("filesystem", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(ctypes.c_long(number), *arguments))


def landlock_version() -> int:
    """The version of Landlock that the running kernel offers; 0 where there is none."""
    if platform.system() != "Linux":
        return 0
    return max(_call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION)), 0)


def enter(folder: Path) -> None:
    """Confine this process and all that it will start; only `folder` can be written to from now on."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = FILE_BYTES if hard == resource.RLIM_INFINITY else min(FILE_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    version = landlock_version()
    if version:
        _enter_landlock(folder, version)


def _enter_landlock(folder: Path, version: int) -> None:
    handled = _WRITE_FILE | _CHANGE_FOLDERS
    if version < _REFER_SINCE:
        handled &= ~(1 << 13)
    if version >= _TRUNCATE_SINCE:
        handled |= _TRUNCATE
    attributes = _RulesetAttributes(
        handled,
        _BIND_TCP | _CONNECT_TCP if version >= _NETWORK_SINCE else 0,
        _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= _SCOPES_SINCE else 0,
    )
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), size, ctypes.c_uint32(0))
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock refuses the rules")
    files = [Path(name) for name in _WRITABLE_FILES]
    files += [path for pattern in _WRITABLE_PATTERNS for path in Path("/dev").glob(pattern) if not path.is_dir()]
    for path in files:
        _allow(ruleset, path, handled & (_WRITE_FILE | _TRUNCATE))
    for path in (folder, Path("/proc/self")):
        _allow(ruleset, path, handled)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)):
        raise OSError(ctypes.get_errno(), "Landlock cannot be entered")
    os.close(ruleset)


def _allow(ruleset: int, path: Path, access: int) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rule = _PathBeneath(access, descriptor)
            arguments = (
                ctypes.c_int(ruleset),
                ctypes.c_int(_RULE_PATH_BENEATH),
                ctypes.byref(rule),
                ctypes.c_uint32(0),
            )
            if _call(_ADD_RULE, *arguments):
                raise OSError(ctypes.get_errno(), f"Landlock refuses the rule for {path}")
        finally:
            os.close(descriptor)


def protections() -> list[Protection]:
    """What a worker that starts on this machine now is kept from, and by what."""
    version = landlock_version()

    def landlock(name: str, since: int, detail: str) -> Protection:
        if version >= since:
            return Protection(name, True, f"{detail} (Landlock {version})")
        found = f"has Landlock {version}" if version else "has no Landlock, or it is switched off"
        return Protection(name, False, f"this Linux kernel {found}; version {since} is needed")

    return [
        landlock("files", 1, "a worker writes in its own temporary folder only"),
        landlock("truncation", _TRUNCATE_SINCE, "other files cannot be cut short either"),
        landlock("memory of others", 1, "no tracing of processes outside, no reading of their memory"),
        landlock("signals", _SCOPES_SINCE, "no signals to processes outside"),
        landlock("network", _NETWORK_SINCE, "no TCP connections"),
        Protection("file size", True, f"{FILE_BYTES >> 30} GiB a file, {FOLDER_BYTES >> 30} GiB for all of a worker's"),
        Protection("processes", True, f"{PROCESSES} at a time; all of them end with the worker"),
        Protection("environment", True, "the caller's variables are held back but for those that find programs"),
    ]
