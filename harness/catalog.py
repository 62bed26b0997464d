"""Where things are: names of workloads, kernels, protocols, devices and suites become files.

The catalogues are looked for in the current directory (or `--root`) first and then where solbench is
installed, so an own workload can be run with the protocols that come with the package.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from harness import measured
from harness.errors import InputError, unknown_name
from harness.measured import MeasuredModel
from harness.spec import (
    DeviceModel,
    GateModel,
    KernelModel,
    ProtocolModel,
    Strict,
    SuiteModel,
    Workload,
    WorkloadModel,
    load_workload,
    read_model,
)
from harness.text import slug

FOLDERS = ("workloads", "kernels", "configs")
M = TypeVar("M", bound=Strict)


@dataclass(frozen=True)
class Kernel:
    """A candidate implementation: its files and what they say of themselves. Nothing is imported."""

    name: str
    path: Path
    model: KernelModel

    @property
    def entry(self) -> Path:
        return self.path / self.model.entry if self.path.is_dir() else self.path

    @cached_property
    def sha256(self) -> str:
        """Identity of the source when it was first asked for: every file's relative name and bytes."""
        digest = hashlib.sha256()
        files = _sources(self.path) if self.path.is_dir() else [self.path]
        for file in files:
            name = file.relative_to(self.path).as_posix() if self.path.is_dir() else ""
            content = file.read_bytes().replace(b"\r\n", b"\n")
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()

    @property
    def idea(self) -> str:
        """The first line of the entry's docstring, or an empty string."""
        try:
            text = ast.get_docstring(ast.parse(self.entry.read_bytes())) or ""
        except (OSError, SyntaxError, ValueError):
            return ""
        return text.split("\n\n")[0].replace("\n", " ")


def _sources(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def installed_root() -> Path:
    """The folder with the catalogues that came with this installation."""
    here = Path(__file__).resolve().parent
    packaged = here / "_catalog"
    return packaged if packaged.is_dir() else here.parent


class Catalog:
    """Look-ups by name over one or two roots; the first root that has a name wins."""

    def __init__(self, root: Path | None = None) -> None:
        """Raises `InputError` when `root` is given and holds none of the catalogue folders."""
        if root is not None and not any((root / folder).is_dir() for folder in FOLDERS):
            remedy = f"give a folder with {', '.join(FOLDERS)}"
            raise InputError(f"--root {root}", "holds no catalogue", remedy)
        first = root if root is not None else Path.cwd()
        self.roots = list(dict.fromkeys([first.resolve(), installed_root()]))

    # Workloads ------------------------------------------------------------------------------

    def workload_folders(self) -> dict[str, Path]:
        """Name to folder, for every folder under `workloads/` that has a `workload.yaml`."""
        found: dict[str, Path] = {}
        for root in self.roots:
            for file in sorted((root / "workloads").glob("*/workload.yaml")):
                found.setdefault(file.parent.name, file.parent)
        return found

    def workload(self, name: str) -> Workload:
        """By catalogue name, short name, or path to a folder or its `workload.yaml`.

        Raises `InputError` for an unknown name, or a faulty file.
        """
        folders = self.workload_folders()
        if name in folders:
            return self._checked(folders[name])
        path = Path(name)
        if path.name == "workload.yaml":
            path = path.parent
        if (path / "workload.yaml").is_file():
            return load_workload(path)
        short_names = self._short_names(folders)
        if name in short_names:
            return self._checked(short_names[name])
        raise unknown_name("workload", name, [*folders, *short_names])

    @staticmethod
    def _short_names(folders: dict[str, Path]) -> dict[str, Path]:
        short_names: dict[str, Path] = {}
        for folder in folders.values():
            try:
                model, _ = read_model(folder / "workload.yaml", WorkloadModel)
            except InputError:
                continue  # its own look-up reports the fault; it must not hide the other workloads
            short_names.setdefault(model.short_name, folder)
        return short_names

    @staticmethod
    def _checked(folder: Path) -> Workload:
        workload = load_workload(folder)
        if workload.name != folder.name:
            place = f"{workload.document.place(('name',))}: name"
            raise InputError(place, f'"{workload.name}" differs from the folder "{folder.name}"', "make them equal")
        return workload

    # Kernels --------------------------------------------------------------------------------

    def kernel_paths(self, workload: Workload) -> dict[str, Path]:
        """Name to path of every kernel of a workload; names that begin with `_` are left out."""
        found: dict[str, Path] = {}
        for root in self.roots:
            folder = root / "kernels" / workload.name
            for path in sorted(folder.iterdir()) if folder.is_dir() else []:
                if path.name.startswith(("_", ".")):
                    continue
                if path.suffix == ".py" or (path / "kernel.yaml").is_file():
                    found.setdefault(path.stem if path.is_file() else path.name, path)
        found["reference"] = workload.reference_path
        return found

    def kernel(self, name: str, workload: Workload) -> Kernel:
        """By catalogue name, or path to a file or folder; `reference` is the workload's own.

        Raises `InputError` for an unknown name, a faulty `kernel.yaml`, or a file without `run`.
        """
        known = self.kernel_paths(workload)
        path = known.get(name)
        if path is None and (Path(name).is_file() or Path(name).is_dir()):
            path = Path(name)
            name = path.stem if path.is_file() else path.resolve().name
        if path is None and (name.endswith(".py") or "/" in name):
            raise InputError(f'kernel "{name}"', "is no file here", "give a path that exists, or a catalogue name")
        if path is None:
            raise unknown_name("kernel", name, known, f"kernel of {workload.name}")
        model = KernelModel.model_validate({"schema": 1})
        if path.is_dir():
            if not (path / "kernel.yaml").is_file():
                raise InputError(str(path), "has no kernel.yaml", "write one, or name a single .py file")
            model, _ = read_model(path / "kernel.yaml", KernelModel)
        elif path.suffix != ".py":
            raise InputError(str(path), "is not a Python file", "give a .py file or a folder with kernel.yaml")
        kernel = Kernel(name, path, model)
        if path.is_dir() and not kernel.entry.resolve().is_relative_to(path.resolve()):
            place = f"{path / 'kernel.yaml'}: entry"
            raise InputError(place, f'"{model.entry}" leads out of the folder', "name a file inside it")
        _require_run(kernel.entry)
        return kernel

    # Configurations -------------------------------------------------------------------------

    def _files(self, kind: str) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for root in self.roots:
            for file in sorted((root / "configs" / kind).glob("*.yaml")):
                found.setdefault(file.stem, file)
        return found

    def _by_name(self, kind: str, singular: str, name: str, model: type[M]) -> M:
        files = self._files(kind)
        path = files.get(name) or (Path(name) if name.endswith((".yaml", ".yml")) else None)
        if path is None:
            raise unknown_name(singular, name, files)
        return read_model(path, model)[0]

    def protocol_names(self) -> list[str]:
        return list(self._files("protocols"))

    def protocol(self, name: str) -> ProtocolModel:
        """By name or path. Raises `InputError`."""
        return self._by_name("protocols", "protocol", name, ProtocolModel)

    def suite_names(self) -> list[str]:
        return list(self._files("suites"))

    def suite(self, name: str) -> SuiteModel:
        """By name or path. Raises `InputError`."""
        return self._by_name("suites", "suite", name, SuiteModel)

    def devices(self) -> dict[str, DeviceModel]:
        """File stem to device, for every file under `configs/devices/`, each with what was measured of it.

        A measured device that no file describes stands under the stem of its file in `configs/measured/`.
        """
        found = {stem: read_model(file, DeviceModel)[0] for stem, file in self._files("devices").items()}
        for stem, one in self.measured().items():
            described = [name for name, device in found.items() if device.answers_to(one.device)]
            for name in described:
                found[name] = one.joined(found[name])
            if not described:
                found[f"{stem}_measured" if stem in found else stem] = one.joined(None)
        return found

    def measured_path(self, name: str) -> Path:
        """Where the measured peaks of a device belong, by the driver's name: under the first root."""
        described = [stem for stem, device in self.devices().items() if device.answers_to(name)]
        return self.roots[0] / "configs" / "measured" / f"{described[0] if described else slug(name)}.yaml"

    def measured(self) -> dict[str, MeasuredModel]:
        """File stem to measurement, for every file under `configs/measured/`; one for each device, the nearest."""
        found: dict[str, MeasuredModel] = {}
        for stem, file in self._files("measured").items():
            one = measured.read(file)
            if one.device not in {other.device for other in found.values()}:
                found[stem] = one
        return found

    def device(self, name: str) -> DeviceModel:
        """By file stem, by the device's name, or by what the driver calls it. Raises `InputError`."""
        devices = self.devices()
        for stem, device in devices.items():
            if name.lower() == stem.lower() or device.answers_to(name):
                return device
        raise unknown_name("device", name, devices)


def gate_policy(root: Path, path: Path | None) -> GateModel:
    """The policy in `path`, by default `configs/gate.yaml` under `root` or else the installed one.

    Raises `InputError` for a faulty file.
    """
    own = root / "configs" / "gate.yaml"
    return read_model(path or (own if own.is_file() else installed_root() / "configs" / "gate.yaml"), GateModel)[0]


def select_cases(workload: Workload, patterns: Sequence[str]) -> list[str]:
    """The case ids that match any of the patterns (all for none), in the workload's order.

    Raises `InputError` for a pattern that matches nothing.
    """
    ids = workload.case_ids()
    if not patterns:
        return ids
    chosen: set[str] = set()
    for pattern in patterns:
        matching = fnmatch.filter(ids, pattern)
        if not matching:
            raise unknown_name("case", pattern, ids, f"case of {workload.name}")
        chosen.update(matching)
    return [case for case in ids if case in chosen]


def _require_run(entry: Path) -> None:
    """Refuse a file that plainly defines no `run`; what only shows on import is the worker's to say."""
    try:
        tree = ast.parse(entry.read_bytes())
    except OSError as error:
        raise InputError(str(entry), f"cannot be read ({error.strerror})", "give a readable kernel file") from None
    except (SyntaxError, ValueError):
        return  # the kernel's own failure, recorded as COMPILE_ERROR when it is loaded
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name="run") | ast.Name(id="run", ctx=ast.Store()):
                return
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                if any((alias.asname or alias.name) in ("run", "*") for alias in names):
                    return
    raise InputError(str(entry), "defines no function run", "write def run(*inputs) that returns the outputs")
