"""Two corpora of small kernels: cheats that must be caught, and honest ones that look like cheats.

Each is a folder under `kernels/` with one file for each kernel and a `corpus.yaml` that says what must become of
it. Nothing is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harness import sandbox
from harness.catalog import Kernel
from harness.errors import InputError, unknown_name
from harness.records import Status
from harness.spec import Flag, KernelModel, Name, Positive, Strict, Text, Whole, read_model

# The workload that every kernel of the corpora is written for.
WORKLOAD = "moe_swiglu_backward"
CHEATS, HONEST = "_cheats", "_honest"
FILE = "corpus.yaml"


def _status(value: object) -> Status:
    if value not in list(Status):
        raise ValueError(f'"{value}" is no status; take some of {", ".join(Status)}')
    return Status(str(value))


class EntryModel(Strict):
    """What holds for a kernel of either corpus."""

    devices: Annotated[tuple[Literal["cpu", "cuda"], ...], Field(min_length=1)] = ("cpu", "cuda")
    timeout_s: Positive = 60.0
    destination_passing_style: Flag = False
    needs_cpp_compiler_on_cpu: Flag = False


class CheatModel(EntryModel):
    """What counts as caught.

    expect: the statuses. reason: what a failure's reason must say. harmless_because: why PASSED may be among
    them. needs: the protection of `harness.sandbox` that must be at work.
    """

    expect: Annotated[list[Annotated[Status, BeforeValidator(_status)]], Field(min_length=1)]
    reason: Text | None = None
    harmless_because: Text | None = None
    needs: Text | None = None

    @model_validator(mode="after")
    def _what_may_pass_is_explained(self) -> Self:
        if Status.PASSED in self.expect and self.harmless_because is None:
            raise ValueError("a cheat may be PASSED without harm only for a reason; add harmless_because")
        if Status.PASSED not in self.expect and self.harmless_because is not None:
            raise ValueError("harmless_because explains a PASSED that is not expected; remove one of the two")
        return self


class CheatsModel(Strict):
    schema_: Annotated[Whole, Field(alias="schema", ge=1, le=1)]
    kernels: Annotated[dict[Name, CheatModel], Field(min_length=1)]


class HonestModel(Strict):
    schema_: Annotated[Whole, Field(alias="schema", ge=1, le=1)]
    kernels: Annotated[dict[Name, EntryModel], Field(min_length=1)]


@dataclass(frozen=True)
class Entry:
    """One kernel of a corpus. `model` is a `CheatModel` for a cheat and for no other."""

    name: str
    folder: Path
    model: EntryModel

    @property
    def expected(self) -> tuple[Status, ...]:
        return tuple(self.model.expect) if isinstance(self.model, CheatModel) else (Status.PASSED,)

    @property
    def idea(self) -> str:
        return self.kernel().idea

    def kernel(self, folder: Path | None = None) -> Kernel:
        """The kernel whose folder is the corpus, so that it may import what begins with `_` there.

        `folder`: where a copy of the corpus lies.
        """
        said = self.model.model_dump(include={"destination_passing_style", "needs_cpp_compiler_on_cpu"})
        about = {"schema": 1, "entry": f"{self.name}.py", "devices": list(self.model.devices), **said}
        model = KernelModel.model_validate(about)
        return Kernel(self.name, folder or self.folder, model)


def load(roots: Sequence[Path]) -> list[Entry]:
    """The cheats and then the honest kernels, each corpus from the first root that has it.

    Raises `InputError` for a corpus that is missing, a fault in `corpus.yaml`, or a file that it does not name.
    """
    cheats = _entries(_folder(roots, CHEATS), CheatsModel)
    honest = _entries(_folder(roots, HONEST), HonestModel)
    names = {entry.name for entry in cheats}
    for entry in honest:
        if entry.name in names:
            place = str(entry.folder / f"{entry.name}.py")
            raise InputError(place, f"has the name of a cheat in {CHEATS}", "rename one of the two")
    return [*cheats, *honest]


def _folder(roots: Sequence[Path], name: str) -> Path:
    for root in roots:
        if (root / "kernels" / name / FILE).is_file():
            return root / "kernels" / name
    places = " or ".join(str(root / "kernels") for root in roots)
    raise InputError(places, f"has no {name}/{FILE}", "install solbench again, or give another --root")


def _entries(folder: Path, kind: type[CheatsModel] | type[HonestModel]) -> list[Entry]:
    model, document = read_model(folder / FILE, kind)
    entries = [Entry(name, folder, said) for name, said in model.kernels.items()]
    for entry in entries:
        file = folder / f"{entry.name}.py"
        if not file.is_file():
            place = f"{document.place(('kernels', entry.name))}: kernels.{entry.name}"
            raise InputError(place, f"has no file {file.name} beside it", "write it, or remove the key")
        if isinstance(entry.model, CheatModel) and entry.model.needs is not None:
            place = f"{document.place(('kernels', entry.name, 'needs'))}: kernels.{entry.name}.needs"
            protections = [protection.name for protection in sandbox.protections()]
            if entry.model.needs not in protections:
                raise unknown_name("protection", entry.model.needs, protections, place)
        if not entry.idea:
            raise InputError(str(file), "has no docstring", "say in one sentence what it does")
    for file in sorted(folder.glob("[!_]*.py")):
        if file.stem not in model.kernels:
            raise InputError(str(file), f"is not in {FILE}", "say there what must become of it")
    return entries


def chosen(entries: Iterable[Entry], names: Sequence[str]) -> list[Entry]:
    """The entries of those names, all for none. Raises `InputError` for a name that no entry has."""
    by_name = {entry.name: entry for entry in entries}
    for name in names:
        if name not in by_name:
            raise unknown_name("cheat or honest kernel", name, by_name, "--kernel")
    return [entry for name, entry in by_name.items() if not names or name in names]
