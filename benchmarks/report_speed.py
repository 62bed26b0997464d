"""How long a large results file takes to report and load, and how much memory.

    python benchmarks/report_speed.py [--records 100000] [--keep FILE]

The file is made of the committed records with other kernel names, run ids and times, so that every record
answers a question of its own. Each form of `solbench report` and `harness.load` runs in a new process;
printed are its wall time in seconds and its peak resident memory in MB (10^6 bytes).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
FORMS = ("table", "markdown", "csv", "json", "html")
# The kernel's count of a child's memory begins with that of the process that started it, so the child tells its own.
TELL_PEAK = """
import atexit, os, pathlib, re
def tell():
    status = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path(os.environ["PEAK_FILE"]).write_text(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])
atexit.register(tell)
"""
REPORT = "import cli; cli.main()"
LOAD = "import sys, harness; frame = harness.load(sys.argv[1]); assert len(frame) == int(sys.argv[2]), len(frame)"


def generate(path: Path, count: int) -> None:
    """Write `count` records of distinct identity; the same ones each time."""
    lines = [line for file in sorted((REPOSITORY / "results").glob("*/*.jsonl")) for line in file.open()]
    source = random.Random(0)
    with path.open("w") as file:
        for index in range(count):
            values = json.loads(lines[index % len(lines)])
            _vary(values, f"{values['kernel']}_{index // len(lines):05d}", source)
            file.write(json.dumps(values) + "\n")


def _vary(values: dict[str, Any], kernel: str, source: random.Random) -> None:
    factor = source.uniform(1.0, 2.0)
    values["kernel"] = kernel
    values["kernel_sha256"] = hashlib.sha256(kernel.encode()).hexdigest()
    values["run_id"] = f"{source.getrandbits(128):032x}"
    values["time"] = str(datetime.fromisoformat(values["time"]) + timedelta(seconds=source.randrange(10**7)))
    if values["latency_ms"] is not None:
        values["latency_ms"] *= factor
    for timing in values["timings"].values():
        timing["samples_ms"] = [ms * factor for ms in timing["samples_ms"]]
    gpu = values["environment"].get("gpu") or {}
    gpu["temperature_c"] = float(source.randrange(30, 80))


def measure(code: str, arguments: list[str]) -> tuple[float, float]:
    """Wall seconds and peak resident MB of some code in a new process. Raises `SystemExit` where it fails."""
    with tempfile.NamedTemporaryFile("r") as peak:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PEAK_FILE": peak.name}
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", TELL_PEAK + code, *arguments], env=environment, check=False)
        seconds = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"failed: {' '.join(arguments)}")
        return seconds, int(peak.read()) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="results file to make, or to use again where it is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "records.jsonl"
        if not path.exists():
            generate(path, options.records)
        print(f"{options.records} records, {path.stat().st_size / 1e6:.0f} MB")
        commands = {
            f"report -f {form}": (REPORT, ["report", str(path), "-f", form, "-o", f"{folder}/out"]) for form in FORMS
        }
        commands["harness.load"] = (LOAD, [str(path), str(options.records)])
        for name, (code, arguments) in commands.items():
            seconds, peak_mb = measure(code, arguments)
            print(f"{name:18} {seconds:6.2f} s {peak_mb:6.0f} MB", flush=True)


if __name__ == "__main__":
    main()
