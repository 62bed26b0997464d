"""The library behind `solbench`: measure, judge and bound kernels. docs/architecture.md has the map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

    from harness.frame import Results

__version__ = "0.1.0"


def load(results: Results, keep: Literal["newest", "all"] = "newest") -> pd.DataFrame:
    """Records of results files as a tidy data frame, such as `load("results/**/*.jsonl")`.

    `results` is a path, a glob, or several of them; docs/records.md lists the columns. `keep="all"` keeps
    records that a newer one replaces. Lines that are no records are left out with a warning each. Raises
    `harness.errors.InputError` where nothing matches.
    """
    from harness.frame import load as load_frame  # imports only when used: `import harness` stays instant

    return load_frame(results, keep)
