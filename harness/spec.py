"""What people write, as typed values: workloads, protocols, devices, suites and kernel descriptions.

Reading is strict. Each fault is an `InputError` that names file, line, key, value and remedy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from harness import expressions
from harness.errors import InputError, unknown_name
from harness.expressions import ExpressionError
from harness.sol import Roofline
from harness.strict_yaml import Document, Path_, QuotedText, dotted, load

# --- scalars: text becomes a number or a flag only where one is asked for -------------------------

_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[+-]?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[+-]?0+([0-9]+)")


def _scalar(value: object, wanted: str, example: str) -> str:
    if isinstance(value, QuotedText):
        raise ValueError(f'"{value}" is text in quotes, not {wanted}; write {example} without quotes')
    if not isinstance(value, str):
        found = {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(value), repr(value))
        raise ValueError(f"{found} stands where {wanted} belongs; write one such as {example}")
    if match := _LEADING_ZERO.fullmatch(value):
        raise ValueError(f'"{value}" has a leading zero and could be read as octal; write {int(match[1])}')
    return value


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = _scalar(value, "a whole number", "8192")
    if not _WHOLE.fullmatch(text) or len(text) > 20:
        raise ValueError(f'"{text}" is not a whole number; write one such as 8192')
    return int(text)


def _number(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    text = _scalar(value, "a number", "1e-5")
    if not _DECIMAL.fullmatch(text) or not any(c.isdigit() for c in text) or text[0] in "eE":
        raise ValueError(f'"{text}" is not a number; write one such as 0.05 or 1e-5')
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f'"{text}" is too large for a number; write a finite one')
    return number


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = _scalar(value, "true or false", "true")
    if text not in ("true", "false"):
        raise ValueError(f'"{text}" is not a flag; write true or false')
    return text == "true"


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("text is missing here; write some")
    return str(value)


Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_text)]
Positive = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[Whole, Field(ge=1)]
Name = Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
AxisName = Annotated[Text, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=40)]

Dtype = Literal["bfloat16", "float16", "float32", "float64", "int32", "int64"]
DTYPE_BYTES: Mapping[str, int] = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
}
Backend = Literal["queued", "cupti", "events", "host"]


def _stated(model: BaseModel, exclude: set[str] | None = None) -> str:
    """A model's values as text that identifies them.

    Without those that are the defaults, so that a new key, whose default is what was done before it, does not
    make another question of every file. For that, a default is never changed.
    """
    values = model.model_dump(mode="json", exclude=exclude, exclude_defaults=True)
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


class Strict(BaseModel):
    """Unknown keys are errors and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --- the workload file ----------------------------------------------------------------------------


class InputModel(Strict):
    """One input tensor and where its values come from: exactly one of the four sources."""

    shape: Annotated[list[Text], Field(min_length=1, max_length=8)]
    dtype: Dtype = "bfloat16"
    normal: Text | None = None
    uniform: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None
    constant: Number | None = None
    derived_by: AxisName | None = None

    def sources(self) -> list[str]:
        return [key for key in ("normal", "uniform", "constant", "derived_by") if getattr(self, key) is not None]


class ToleranceModel(Strict):
    """Limits for one output; what is left out here is taken from the next wider place."""

    atol: Annotated[Number, Field(ge=0)] | None = None
    rtol: Annotated[Number, Field(ge=0)] | None = None
    match_ratio: Share | None = None
    norm_relative_error: Positive | None = None


class OutputModel(Strict):
    shape: Annotated[list[Text], Field(min_length=1, max_length=8)]
    dtype: Dtype = "bfloat16"
    tolerance: ToleranceModel = ToleranceModel()


class WorkModel(Strict):
    """Operations and least traffic of one case, as expressions over its axes."""

    flops: Text
    bytes_read: Text
    bytes_written: Text


class PublishedCaseModel(Strict):
    bound_ms: Positive
    baseline_ms: Positive
    note: Text | None = None


class PublishedModel(Strict):
    """Under which name and on which device the suite was published, and by whom."""

    name: Text
    collection: Text
    model: Text
    device: Text
    source: Text
    identity_sha256_prefix: Text | None = None
    match_ratio_as_written: Share | None = None
    note: Text | None = None


class CaseModel(Strict):
    id: Name
    uuid: Text | None = None
    axes: dict[AxisName, Count]
    tolerance: ToleranceModel = ToleranceModel()
    published: PublishedCaseModel | None = None


class SliceModel(Strict):
    """A part of the question that can be asked by itself: `take` says how many indices of which axes.

    With those indices alone in every input that has the axes, the reference's `outputs` are the same indices
    of the whole ones. It lets the judge check a random part of every timed call at little cost.
    """

    take: Annotated[dict[AxisName, Count], Field(min_length=1)]
    outputs: Annotated[list[AxisName], Field(min_length=1)]


class CpuModel(Strict):
    """How much the scalable axes shrink on a machine without a GPU."""

    scale: Count


class WorkloadModel(Strict):
    schema_: Annotated[Whole, Field(alias="schema", ge=1, le=1)]
    name: Name
    short_name: Name
    title: Text
    semantics: Text
    published: PublishedModel | None = None
    case_axes: Annotated[list[AxisName], Field(min_length=1)]
    axes: dict[AxisName, Text] = {}
    scalable_axes: list[AxisName] = []
    cpu: CpuModel = CpuModel(scale=1)
    inputs: Annotated[dict[AxisName, InputModel], Field(min_length=1)]
    outputs: Annotated[dict[AxisName, OutputModel], Field(min_length=1)]
    tolerance: ToleranceModel = ToleranceModel()
    slices: list[SliceModel] = []
    work: WorkModel
    baseline_kernel: Name = "eager"
    cases: Annotated[list[CaseModel], Field(min_length=1)]


# --- what the rest of the library works with -----------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    """A tensor of one case: name, shape in elements, dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        count = DTYPE_BYTES[self.dtype]
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class Tolerance:
    """An element matches when |out - ref| <= atol + rtol*|ref|; `match_ratio` of them must.

    `norm_relative_error` limits ||out - ref|| / ||ref|| over the whole output.
    """

    atol: float
    rtol: float
    match_ratio: float
    norm_relative_error: float


@dataclass(frozen=True)
class Case:
    """One case of a workload at one scale, everything resolved to numbers."""

    id: str
    uuid: str | None
    axes: Mapping[str, int]
    scale: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    tolerances: Mapping[str, Tolerance]
    flops: int
    bytes_read: int
    bytes_written: int
    published_bound_ms: float | None
    published_baseline_ms: float | None
    published_note: str | None

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Workload:
    """A workload file that has passed every check, with the folder it came from."""

    model: WorkloadModel
    document: Document
    folder: Path

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def reference_path(self) -> Path:
        return self.folder / "reference.py"

    @cached_property
    def sha256(self) -> str:
        """Identity of what is asked: the file's values (not its comments) and the reference's bytes.

        How the judge takes parts of it is left out: the question stays the same.
        """
        digest = hashlib.sha256(_stated(self.model, exclude={"slices"}).encode())
        digest.update(self.reference_path.read_bytes().replace(b"\r\n", b"\n"))
        return digest.hexdigest()

    def case_ids(self) -> list[str]:
        return [case.id for case in self.model.cases]

    def case(self, case_id: str, scale: int = 1) -> Case:
        """One case with the scalable axes divided by `scale`.

        Raises `InputError` for an unknown case, or a scale that does not divide every scalable axis.
        """
        for index, case in enumerate(self.model.cases):
            if case.id == case_id:
                return self._resolve(index, scale)
        raise unknown_name("case", case_id, self.case_ids())

    def _resolve(self, index: int, scale: int) -> Case:
        model, case = self.model, self.model.cases[index]
        axes = self._axes(index, scale)

        def shape(group: str, name: str, sizes: list[str]) -> tuple[int, ...]:
            return tuple(
                self._evaluated((group, name, "shape", position), text, axes) for position, text in enumerate(sizes)
            )

        return Case(
            id=case.id,
            uuid=case.uuid,
            axes=axes,
            scale=scale,
            inputs=tuple(Tensor(n, shape("inputs", n, t.shape), t.dtype) for n, t in model.inputs.items()),
            outputs=tuple(Tensor(n, shape("outputs", n, t.shape), t.dtype) for n, t in model.outputs.items()),
            tolerances={name: self._tolerance(index, name) for name in model.outputs},
            flops=self._evaluated(("work", "flops"), model.work.flops, axes),
            bytes_read=self._evaluated(("work", "bytes_read"), model.work.bytes_read, axes),
            bytes_written=self._evaluated(("work", "bytes_written"), model.work.bytes_written, axes),
            published_bound_ms=case.published.bound_ms if case.published and scale == 1 else None,
            published_baseline_ms=case.published.baseline_ms if case.published and scale == 1 else None,
            published_note=case.published.note if case.published and scale == 1 else None,
        )

    def _evaluated(self, key: Path_, text: str, axes: Mapping[str, int]) -> int:
        try:
            return expressions.whole(text, axes)
        except ExpressionError as error:
            raise self._error(key, f'"{text}" {error}', "give an expression over the axes that does") from None

    def _axes(self, index: int, scale: int) -> dict[str, int]:
        """The case's own axes first, then every defined axis in the order its expression needs."""
        case = self.model.cases[index]
        known: dict[str, int] = dict(case.axes)
        waiting = dict(self.model.axes)
        while waiting:
            ready = [name for name, text in waiting.items() if self._names(("axes", name), text) <= known.keys()]
            if not ready:
                name, text = next(iter(waiting.items()))
                missing = sorted(self._names(("axes", name), text) - known.keys())
                if set(missing) <= self.model.axes.keys():
                    problem = f'"{text}" is defined in a circle through {", ".join(missing)}'
                    raise self._error(("axes", name), problem, "give one of them a number")
                problem = f'"{text}" names the axis "{missing[0]}", which is not defined'
                raise self._error(("axes", name), problem, "define it under axes or case_axes")
            for name in ready:
                value = self._evaluated(("axes", name), waiting.pop(name), known)
                if name in self.model.scalable_axes:
                    if value % scale:
                        raise InputError("--scale", f"{scale} does not divide {name} = {value}", "take a divisor")
                    value //= scale
                known[name] = value
        return known

    def _names(self, key: Path_, text: str) -> set[str]:
        try:
            return expressions.names(text)
        except ExpressionError as error:
            raise self._error(key, f'"{text}" {error}', "write arithmetic over the axes") from None

    def _tolerance(self, index: int, output: str) -> Tolerance:
        case = self.model.cases[index]
        places = (case.tolerance, self.model.outputs[output].tolerance, self.model.tolerance)
        found: dict[str, float] = {}
        for limit in ToleranceModel.model_fields:
            value = next((getattr(p, limit) for p in places if getattr(p, limit) is not None), None)
            if value is None:
                raise self._error(
                    ("outputs", output),
                    f"has no {limit} in case {case.id}",
                    f"give tolerance.{limit} there, in the case, or for the whole file",
                )
            found[limit] = value
        return Tolerance(**found)

    def _error(self, key: Path_, problem: str, remedy: str) -> InputError:
        return InputError(f"{self.document.place(key)}: {dotted(key)}", problem, remedy)

    def check(self) -> None:
        """Every check that needs more than one key. Raises `InputError` at the first fault."""
        model = self.model
        for axis in model.case_axes:
            if axis in model.axes:
                raise self._error(("axes", axis), "is also one of case_axes", "keep it in one of the two")
        for axis in model.scalable_axes:
            if axis not in model.axes:
                raise self._error(("scalable_axes",), f'"{axis}" is not one of axes', f"known: {', '.join(model.axes)}")
        for name, tensor in model.inputs.items():
            if len(sources := tensor.sources()) != 1:
                problem = f"has {len(sources)} sources of values ({', '.join(sources) or 'none'})"
                raise self._error(("inputs", name), problem, "give one of normal, uniform, constant, derived_by")
            if name in model.outputs:
                raise self._error(("outputs", name), "is also an input", "give it a name of its own")
        self._check_slices()
        for group in ("id", "uuid"):
            seen: dict[object, int] = {}
            for index, case in enumerate(model.cases):
                if (value := getattr(case, group)) is None:
                    continue
                if value in seen:
                    problem = f'"{value}" stands in cases[{seen[value]}] already'
                    raise self._error(("cases", index, group), problem, "remove one of the two")
                seen[value] = index
        sizes: dict[tuple[tuple[str, int], ...], int] = {}
        for index, case in enumerate(model.cases):
            if unknown := sorted(case.axes.keys() - set(model.case_axes)):
                known = ", ".join(model.case_axes)
                problem = f'"{unknown[0]}" is not one of case_axes'
                raise self._error(("cases", index, "axes", unknown[0]), problem, f"known: {known}")
            if missing := sorted(set(model.case_axes) - case.axes.keys()):
                raise self._error(("cases", index, "axes"), f'"{missing[0]}" is missing', "give its size")
            key = tuple(sorted(case.axes.items()))
            if key in sizes:
                problem = f"{case.id} has the sizes of cases[{sizes[key]}]"
                raise self._error(("cases", index), problem, "remove one of the two")
            sizes[key] = index
            resolved = self._resolve(index, scale=1)
            for name, tensor in model.inputs.items():
                if tensor.normal is not None:
                    try:
                        spread = expressions.evaluate(tensor.normal, resolved.axes)
                    except ExpressionError as error:
                        problem = f'"{tensor.normal}" {error}'
                        raise self._error(("inputs", name, "normal"), problem, "mend the expression") from None
                    if spread <= 0:
                        problem = f'"{tensor.normal}" comes to {float(spread):g}'
                        raise self._error(("inputs", name, "normal"), problem, "give a standard deviation above 0")

    def _check_slices(self) -> None:
        model, seen = self.model, dict[str, int]()
        for index, part in enumerate(model.slices):
            for position, name in enumerate(part.outputs):
                place: Path_ = ("slices", index, "outputs", position)
                if name not in model.outputs:
                    raise unknown_name("output", name, model.outputs, f"{self.document.place(place)}: {dotted(place)}")
                if name in seen:
                    raise self._error(place, f'"{name}" stands in slices[{seen[name]}] already', "name it once")
                seen[name] = index
                if not set(part.take) & set(model.outputs[name].shape):
                    problem = f'"{name}" has none of the axes {", ".join(part.take)}'
                    raise self._error(place, problem, "take indices of an axis that is one of its sizes")
            for axis in part.take:
                if not any(axis in tensor.shape for tensor in model.inputs.values()):
                    problem = f'"{axis}" is a size of no input'
                    raise self._error(("slices", index, "take", axis), problem, "take an axis of the inputs' shapes")
        if model.slices and (missing := [name for name in model.outputs if name not in seen]):
            raise self._error(("slices",), f'"{missing[0]}" is in none of them', "add it, or leave slices out")


# --- protocols, devices, suites, kernels ---------------------------------------------------------


class RoundsModel(Strict):
    """Correctness rounds: `rounds` of them, fewer (but `at_least`) once `budget_s` is spent."""

    rounds: Count
    at_least: Count
    budget_s: Positive


class SamplesModel(Strict):
    """Timed iterations: `samples` of them, fewer (but `at_least`) once `budget_s` is spent or the median is known.

    It is known when half its 95% confidence interval is at most `half_width` of it; null asks for all samples.
    """

    warmup: Annotated[Whole, Field(ge=0)]
    samples: Count
    at_least: Count
    budget_s: Positive
    half_width: Positive | None = None


class ProtocolModel(Strict):
    schema_: Annotated[Whole, Field(alias="schema", ge=1, le=1)]
    name: Name
    description: Text
    backend: Backend
    seed: Annotated[Whole, Field(ge=0, lt=2**63)]
    correctness: RoundsModel
    timing: SamplesModel
    # Backends that time the same case too, after the one that gives the latency.
    also: list[Backend] = []
    cold_cache: Flag
    # How the cache is made cold: by reading a buffer of so many times its size, or by writing zeros to it.
    flush: Literal["read", "zero"] = "read"
    flush_multiple: Count = 4
    # Every so many timed iterations the inputs get new content; their addresses are new each time.
    fresh_content_every: Count

    @property
    def sha256(self) -> str:
        """Identity of how the latency was measured. What else was timed, after it, does not change it."""
        return hashlib.sha256(_stated(self, exclude={"also"}).encode()).hexdigest()

    def timing_also(self, backends: Sequence[str]) -> ProtocolModel:
        """This protocol with more backends that time each case too. Raises `InputError` for an unknown one."""
        known = get_args(Backend)
        if unknown := [backend for backend in backends if backend not in known]:
            raise unknown_name("backend", unknown[0], known, "--also")
        more = [backend for backend in dict.fromkeys((*self.also, *backends)) if backend != self.backend]
        return self.model_copy(update={"also": more})


class RooflineModel(Strict):
    """One pair of peak rates of a device, in FLOP/s and bytes/s, and where they come from."""

    bf16_dense_flops: Positive
    bandwidth_bytes_per_s: Positive
    overhead_s: Annotated[Number, Field(ge=0)] = 0.0
    source: Text


class DeviceModel(Strict):
    schema_: Annotated[Whole, Field(alias="schema", ge=1, le=1)]
    name: Text
    # What the driver calls such a card, to the letter: a longer name can be another card.
    driver_names: Annotated[list[Text], Field(min_length=1)]
    compute_capability: Text | None = None
    sm_count: Count | None = None
    l2_bytes: Count | None = None
    # Dense bf16 FLOP that one SM does in a cycle: with it, a bound can be given at the clock that was seen.
    bf16_dense_flops_per_sm_cycle: Count | None = None
    rooflines: Annotated[dict[Name, RooflineModel], Field(min_length=1)]
    default_roofline: Name

    @model_validator(mode="after")
    def _default_is_there(self) -> Self:
        if self.default_roofline not in self.rooflines:
            known = ", ".join(self.rooflines)
            raise ValueError(f'default_roofline "{self.default_roofline}" is not one of rooflines; take {known}')
        return self

    def answers_to(self, name: str) -> bool:
        """Whether `name` is the device's own or one that a driver gives it."""
        return name.lower() in {self.name.lower(), *(known.lower() for known in self.driver_names)}

    def roofline(self, label: str | None = None) -> Roofline:
        """The pair of peak rates of that label, by default the device's own. Raises `InputError`."""
        label = label or self.default_roofline
        if label not in self.rooflines:
            raise unknown_name("roofline", label, self.rooflines, f"roofline of {self.name}")
        peak = self.rooflines[label]
        return Roofline(
            self.name,
            label,
            peak.bf16_dense_flops,
            peak.bandwidth_bytes_per_s,
            peak.overhead_s,
            peak.source,
            self.bf16_dense_flops_per_sm_cycle * self.sm_count
            if self.bf16_dense_flops_per_sm_cycle and self.sm_count
            else None,
        )


class SuiteModel(Strict):
    schema_: Annotated[Whole, Field(alias="schema", ge=1, le=1)]
    name: Name
    description: Text
    workloads: Annotated[list[Name], Field(min_length=1)]
    kernels: Annotated[list[Name], Field(min_length=1)]


class GateModel(Strict):
    """What a regression gate lets through; configs/gate.yaml explains each key."""

    schema_: Annotated[Whole, Field(alias="schema", ge=1, le=1)]
    confidence: Annotated[Number, Field(gt=0.5, lt=1)]
    suite_slowdown: Annotated[Number, Field(ge=0)]
    case_slowdown: Annotated[Number, Field(ge=0)]
    minimum_effect: Annotated[Number, Field(ge=0)]
    inconclusive: Literal["exit", "pass", "fail"]
    max_baseline_age_days: Positive
    required_kernels: list[Text] = []
    required_cases: list[Text] = []


class KernelModel(Strict):
    """`kernel.yaml` beside a kernel of several files, or one that has something to say of itself."""

    schema_: Annotated[Whole, Field(alias="schema", ge=1, le=1)]
    entry: Text = "kernel.py"
    destination_passing_style: Flag = False
    devices: Annotated[list[Literal["cpu", "cuda"]], Field(min_length=1)] = ["cpu", "cuda"]
    # On the CPU the kernel compiles C++ when it runs, so a compiler must be there.
    needs_cpp_compiler_on_cpu: Flag = False
    author: Text | None = None
    source: Text | None = None
    license: Text | None = None


M = TypeVar("M", bound=Strict)


def read_model(path: Path, model: type[M]) -> tuple[M, Document]:
    """Read a YAML file into a model. Raises `InputError` for the first fault, with its line."""
    document = load(path)
    try:
        return model.model_validate(document.root), document
    except ValidationError as error:
        # A misspelt key is reported twice, as unknown and as missing; the first says more.
        faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        raise _translated(document, model, faults[0]) from None


def _translated(document: Document, model: type[Strict], fault: Mapping[str, Any]) -> InputError:
    # pydantic names union members and dict keys in its location; keep what the file has.
    key: Path_ = tuple(part for part in fault["loc"] if part != "[key]")
    while key and not _present(document, key) and fault["type"] != "missing":
        key = key[:-1]
    given = fault.get("input")
    place = f"{document.place(key)}: {dotted(key) or 'the document'}"
    match fault["type"]:
        case "value_error":
            problem, _, remedy = str(fault["ctx"]["error"]).partition("; ")
            return InputError(place, problem, remedy)
        case "extra_forbidden":
            known = _known_keys(model, key[:-1])
            return unknown_name("key", str(key[-1]), known, place)
        case "missing":
            return InputError(place, "is missing", "add this key")
        case "literal_error":
            return InputError(place, f'"{given}" is not known', f"take {fault['ctx']['expected']}")
        case "string_pattern_mismatch":
            remedy = "use letters, digits, '_', and for names '.' and '-', beginning with a letter or digit"
            return InputError(place, f'"{given}" is not a valid name', remedy)
    message = str(fault["msg"])
    shown = "" if isinstance(given, (dict, list)) else f"{given} is out of place: "
    return InputError(place, f"{shown}{message[:1].lower()}{message[1:]}", "correct the value")


def _present(document: Document, key: Path_) -> bool:
    return key in document.lines


def _known_keys(model: type[BaseModel], key: Path_) -> list[str]:
    """The keys that the model has at a location, looked up through nested models."""
    current: Any = model
    for part in key:
        if isinstance(current, type) and issubclass(current, BaseModel):
            by_alias = {field.alias or name: field for name, field in current.model_fields.items()}
            current = by_alias[str(part)].annotation if str(part) in by_alias else None
        else:
            current = next(iter(reversed(getattr(current, "__args__", ()))), None)
        while getattr(current, "__metadata__", None):
            current = current.__origin__
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [field.alias or name for name, field in current.model_fields.items()]
    for option in getattr(current, "__args__", ()):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return [field.alias or name for name, field in option.model_fields.items()]
    return []


def load_workload(folder: Path) -> Workload:
    """Read and check `workload.yaml` in `folder`. Raises `InputError` for any fault."""
    model, document = read_model(folder / "workload.yaml", WorkloadModel)
    workload = Workload(model, document, folder)
    if not workload.reference_path.is_file():
        raise InputError(str(workload.reference_path), "does not exist", "write the PyTorch reference there")
    workload.check()
    return workload
