"""What did a device come to when it was measured? The files under configs/measured/, one for each device.

`solbench calibrate` writes them. They stand beside the datasheets' peaks in configs/devices/, under a label of
their own, and never replace what a person wrote there but for a roofline of the same label.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from harness.errors import InputError
from harness.gpu_state import HARMFUL
from harness.spec import Count, DeviceModel, Number, Positive, RooflineModel, Share, Strict, Text, Whole, read_model
from harness.text import ABSENT, format_share

LABEL = "measured"
HEADING = "# Written by solbench calibrate: measured, not from a datasheet. Rates in FLOP/s and bytes/s.\n"


class RateModel(Strict):
    """One load: its rate over all of its seconds, and in its best moment.

    sustained_per_s: FLOP or bytes per second, the median over consecutive windows after warming up.
    best_per_s: the same of the best window.
    Clock (MHz), power (W), temperature (°C) and what held the clock back, as seen meanwhile.
    """

    what: Text
    sustained_per_s: Positive
    best_per_s: Positive
    windows: Count
    sm_clock_mhz: Positive | None = None
    power_max_w: Positive | None = None
    temperature_max_c: Number | None = None
    throttle: Annotated[dict[Text, Share], Field(default_factory=dict)]


class ConditionsModel(Strict):
    """With which versions and limits it was measured."""

    solbench: Text
    torch: Text
    cuda: Text | None = None
    driver: Text | None = None
    threads: Count | None = None
    power_limit_w: Positive | None = None
    sm_clock_max_mhz: Positive | None = None
    other_processes: Whole | None = None


class MeasuredModel(Strict):
    """One device, by the name that the driver (or the processor) gives itself."""

    schema_: Annotated[Whole, Field(alias="schema", ge=1, le=1)]
    device: Text
    kind: Literal["cuda", "cpu"]
    time: Text
    compute_capability: Text | None = None
    sm_count: Count | None = None
    l2_bytes: Count | None = None
    conditions: ConditionsModel
    roofline: RooflineModel
    products: Annotated[list[RateModel], Field(min_length=1)]
    transfers: Annotated[list[RateModel], Field(min_length=1)]

    @property
    def warnings(self) -> list[str]:
        """Why these rates may be lower than the device's own, or nothing."""
        found = []
        if self.conditions.other_processes:
            found.append(f"{self.conditions.other_processes} other processes were on the GPU")
        for rate in [*self.products, *self.transfers]:
            if harmful := sorted(HARMFUL.intersection(rate.throttle)):
                found.append(f"the GPU was slowed down ({', '.join(harmful)}) in {rate.what}")
        return found

    def joined(self, device: DeviceModel | None) -> DeviceModel:
        """The device with these peaks too; where no file describes it, with these alone."""
        if device is not None:
            return device.model_copy(update={"rooflines": {**device.rooflines, LABEL: self.roofline}})
        return DeviceModel.model_validate(
            {
                "schema": 1,
                "name": self.device,
                "driver_names": [self.device],
                "compute_capability": self.compute_capability,
                "sm_count": self.sm_count,
                "l2_bytes": self.l2_bytes,
                "rooflines": {LABEL: self.roofline.model_dump()},
                "default_roofline": LABEL,
            }
        )


def read(path: Path) -> MeasuredModel:
    """Raises `InputError` for the first fault, with its line."""
    return read_model(path, MeasuredModel)[0]


def prepare(path: Path) -> None:
    """Make sure that `path` can be written, before anything is measured. Raises `InputError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error.strerror) from None
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _unwritable(path, "is a folder" if path.is_dir() else "permission denied")


def write(path: Path, model: MeasuredModel) -> None:
    """As YAML that `read` reads back the same. Raises `InputError` where the file cannot be written."""
    values: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    text = HEADING + yaml.safe_dump(values, sort_keys=False, width=110, allow_unicode=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise _unwritable(path, error.strerror) from None


def _unwritable(path: Path, why: str | None) -> InputError:
    return InputError(f"--output {path}", f"cannot be written ({why})", "choose another path")


def rows(model: MeasuredModel) -> list[dict[str, str]]:
    """For people: one row for each load, by heading."""
    return [
        {
            "load": rate.what,
            "kept up": shown(rate.sustained_per_s),
            "best": shown(rate.best_per_s),
            **_state(rate, model.kind),
        }
        for rates, shown in ((model.products, _tflops), (model.transfers, _gbytes))
        for rate in rates
    ]


def summary(model: MeasuredModel, path: Path) -> str:
    """What was found, where it is kept, and how it is used."""
    peaks = model.roofline
    rates = f"{peaks.bf16_dense_flops / 1e12:.4g} TFLOP/s, {peaks.bandwidth_bytes_per_s / 1e9:.4g} GB/s"
    return f"{model.device}: {rates}, in {path}; use it with --roofline {LABEL}"


def _tflops(rate: float) -> str:
    return f"{rate / 1e12:.4g} TFLOP/s"


def _gbytes(rate: float) -> str:
    return f"{rate / 1e9:.4g} GB/s"


def _state(rate: RateModel, kind: str) -> dict[str, str]:
    if kind == "cpu":
        return {}
    clock = ABSENT if rate.sm_clock_mhz is None else f"{rate.sm_clock_mhz:.0f} MHz"
    power = ABSENT if rate.power_max_w is None else f"{rate.power_max_w:.0f} W"
    held_back = ", ".join(f"{reason} {format_share(share, 0)}" for reason, share in rate.throttle.items())
    return {"SM clock": clock, "power": power, "held back by": held_back or ABSENT}
