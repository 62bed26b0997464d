"""Every known cheat is caught and every honest look-alike passes, in real child processes; and `solbench selftest`."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from conftest import REPOSITORY, solbench

from harness import corpus, machine, selftest
from harness.catalog import Catalog
from harness.corpus import CheatModel, Entry, EntryModel
from harness.errors import InputError
from harness.machine import Target
from harness.records import Status
from harness.selftest import Finding, Observation, Verdict

ENTRIES = corpus.load(Catalog().roots)
# torch.compile takes twenty seconds to start on the CPU; `solbench selftest` waits for it.
ON_CPU = [entry for entry in ENTRIES if "cpu" in entry.model.devices and entry.name != "compiled"]
ON_CUDA = [entry for entry in ENTRIES if "cuda" in entry.model.devices]
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def found_on(device: str, entries: Sequence[Entry]) -> dict[str, Finding]:
    catalog, target = Catalog(), machine.target(device)
    jobs = selftest.jobs_by_default(target)
    setting = selftest.setting(catalog, target, jobs, repeat=1)
    return {finding.entry.name: finding for finding in selftest.run(entries, setting)}


def names(entries: Sequence[Entry], *, cheats: bool) -> list[str]:
    return [entry.name for entry in entries if isinstance(entry.model, CheatModel) is cheats]


def ended_well(found: Finding) -> None:
    if found.verdict is Verdict.SKIPPED:
        pytest.skip(found.reason or "")
    assert not found.verdict.failed, f"{found.found}: {found.reason}"


@pytest.fixture(scope="module")
def on_cpu() -> dict[str, Finding]:
    return found_on("cpu", ON_CPU)


@pytest.mark.parametrize("name", names(ON_CPU, cheats=True))
def test_a_cheat_is_caught(name: str, on_cpu: dict[str, Finding]) -> None:
    ended_well(on_cpu[name])


@pytest.mark.parametrize("name", names(ON_CPU, cheats=False))
def test_an_honest_kernel_passes(name: str, on_cpu: dict[str, Finding]) -> None:
    ended_well(on_cpu[name])


@pytest.fixture(scope="module")
def on_cuda() -> dict[str, Finding]:
    return found_on("cuda", ON_CUDA)


@pytest.mark.parametrize("name", [pytest.param(n, marks=needs_gpu) for n in names(ON_CUDA, cheats=True)])
def test_a_cheat_is_caught_on_the_device(name: str, on_cuda: dict[str, Finding]) -> None:
    ended_well(on_cuda[name])


@pytest.mark.parametrize("name", [pytest.param(n, marks=needs_gpu) for n in names(ON_CUDA, cheats=False)])
def test_an_honest_kernel_passes_on_the_device(name: str, on_cuda: dict[str, Finding]) -> None:
    ended_well(on_cuda[name])


def test_the_corpora_are_as_large_as_they_are_said_to_be() -> None:
    assert len(names(ENTRIES, cheats=True)) >= 36
    assert len(names(ENTRIES, cheats=False)) >= 12


def test_every_cheat_says_where_its_kind_was_seen() -> None:
    for entry in ENTRIES:
        if isinstance(entry.model, CheatModel):
            text = (entry.folder / f"{entry.name}.py").read_text()
            assert "\n\nReported " in text or "\n\nOwn idea" in text, entry.name


def test_few_cheats_are_allowed_to_pass() -> None:
    harmless = [e.name for e in ENTRIES if isinstance(e.model, CheatModel) and e.model.harmless_because]
    assert len(harmless) <= 10, harmless


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cheats_that_count_calls_know_how_many_there_are(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ENTRIES[0].folder)
    counts = importlib.import_module("_moe")
    monkeypatch.setattr(Target, "kind", device)
    protocol = selftest.setting(Catalog(), machine.target("cpu"), jobs=1, repeat=1).protocol
    untimed = protocol.correctness.rounds + 1 + protocol.timing.warmup
    assert counts.UNTIMED_CALLS[device] == untimed
    assert counts.CALLS[device] == untimed + protocol.timing.samples


def test_a_lost_judge_is_told_and_leaves_no_process() -> None:
    (hanging,) = corpus.chosen(ENTRIES, ["hangs_with_children"])
    # On a busy machine its children may come late, and it must not have been ended by then.
    hanging = replace(hanging, model=hanging.model.model_copy(update={"timeout_s": 120.0}))
    this, seen = psutil.Process(), list[psutil.Process]()
    before = set(this.children(recursive=True))

    def kill_the_judge() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            started = [p for p in this.children(recursive=True) if p not in before]
            if any("sleep" in p.name() for p in started):
                seen.extend(p for p in started if p.ppid() != this.pid)
                multiprocessing.active_children()[0].kill()
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_the_judge)
    killer.start()
    found = found_on("cpu", [hanging])["hangs_with_children"]
    killer.join()
    assert (found.verdict, found.reason) == (Verdict.MISSED, "the judge's process ended")
    assert psutil.wait_procs(seen, timeout=10)[1] == []


# --- verdicts -----------------------------------------------------------------------------------


def cheat(**fields: object) -> Entry:
    model = CheatModel.model_validate({"expect": ["REWARD_HACK"], **fields})
    return Entry("swapped_outputs", ENTRIES[0].folder, model)


HONEST = Entry("views", ENTRIES[-1].folder, EntryModel())
PASSED, HACK = Observation(Status.PASSED), Observation(Status.REWARD_HACK, "it shares memory with x")
HARMLESS = {"expect": ["PASSED"], "harmless_because": "it gains nothing"}

# (entry, what was seen, verdict, what was found, part of the reason)
VERDICTS = {
    "caught": (cheat(), [HACK], Verdict.CAUGHT, "REWARD_HACK", "shares memory"),
    "passed": (cheat(), [PASSED], Verdict.MISSED, "PASSED", "REWARD_HACK was expected"),
    "other_status": (cheat(), [Observation(Status.TIMEOUT, "late")], Verdict.MISSED, "TIMEOUT", "late"),
    "other_reason": (cheat(reason="wrote to"), [HACK], Verdict.MISSED, "REWARD_HACK", 'does not say "wrote to"'),
    "same_reason": (cheat(reason="memory with x"), [HACK], Verdict.CAUGHT, "REWARD_HACK", None),
    "left_something": (
        cheat(),
        [Observation(Status.REWARD_HACK, "", ("left 1 processes",))],
        Verdict.MISSED,
        "REWARD_HACK",
        "left 1",
    ),
    "lost_its_judge": (cheat(), [Observation(None, "it ended")], Verdict.MISSED, "no record", "it ended"),
    "harmless": (cheat(**HARMLESS), [PASSED], Verdict.HARMLESS, "PASSED", "it gains nothing"),
    "not_harmless": (
        cheat(**HARMLESS),
        [Observation(Status.PASSED, None, ("changed results/r.jsonl",))],
        Verdict.MISSED,
        "PASSED",
        "changed results",
    ),
    "honest": (HONEST, [PASSED, PASSED], Verdict.PASSED, "PASSED", None),
    "false_alarm": (HONEST, [PASSED, HACK, PASSED], Verdict.FALSE_ALARM, "REWARD_HACK (1 of 3)", "shares memory"),
    "skipped": (HONEST, [Observation(Status.SKIPPED, "no compiler")], Verdict.SKIPPED, "SKIPPED", "no compiler"),
    "honest_left_something": (
        HONEST,
        [Observation(Status.PASSED, None, ("left x",))],
        Verdict.FALSE_ALARM,
        "PASSED",
        "left x",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_follows_from_what_was_seen(name: str) -> None:
    entry, seen, verdict, found, part = VERDICTS[name]
    finding = selftest.finding(entry, seen)
    assert (finding.verdict, finding.found, finding.evaluations) == (verdict, found, len(seen))
    assert part is None or part in (finding.reason or "")
    assert json.loads(json.dumps(finding.as_row()))["verdict"] == verdict.value


def test_the_last_line_counts() -> None:
    findings = [selftest.finding(entry, seen) for entry, seen, *_ in (VERDICTS["caught"], VERDICTS["passed"])]
    findings += [selftest.finding(HONEST, [PASSED])]
    assert selftest.summary(findings) == "2 cheats: 1 caught, 1 missed. 1 honest kernel: 1 passed."


def test_what_changed_in_a_catalogue_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "kernels" / "w"
    folder.mkdir(parents=True)
    for name in ("a.py", "b.py"):
        (folder / name).write_text("1")
    before = selftest.fingerprint([tmp_path])
    (folder / "a.py").write_text("2")
    (folder / "b.py").unlink()
    (folder / "c.py").symlink_to("/dev/null")
    changes = selftest.changed_files(before, selftest.fingerprint([tmp_path]))
    assert changes == [f"changed {folder}/a.py", f"removed {folder}/b.py", f"added {folder}/c.py"]


# --- corpus.yaml --------------------------------------------------------------------------------

KERNEL = '"""{idea}"""\n\n\ndef run(*inputs):\n    return inputs\n'
CHEATS_YAML = "schema: 1\nkernels:\n  k: {expect: [REWARD_HACK]}\n"
HONEST_YAML = "schema: 1\nkernels:\n  h: {}\n"


def corpora(root: Path, cheats: str = CHEATS_YAML, honest: str = HONEST_YAML, **files: str) -> Path:
    """A root with both corpora; `files` replace or add kernels of the cheats, empty text removes one."""
    for name, text, kernel in ((corpus.CHEATS, cheats, "k"), (corpus.HONEST, honest, "h")):
        folder = root / "kernels" / name
        folder.mkdir(parents=True)
        (folder / corpus.FILE).write_text(text)
        (folder / f"{kernel}.py").write_text(KERNEL.format(idea="Returns its inputs."))
    for name, source in files.items():
        file = root / "kernels" / corpus.CHEATS / f"{name}.py"
        if source:
            file.write_text(source)
        else:
            file.unlink()
    return root


# name: (replaced in CHEATS_YAML, by, parts of the message)
FAULTS = {
    "status": ("REWARD_HACK", "CAUGHT", ["kernels.k.expect[0]", '"CAUGHT" is no status', "PASSED"]),
    "no_status": ("[REWARD_HACK]", "[]", ["kernels.k.expect"]),
    "unexplained": ("REWARD_HACK", "PASSED", ["corpus.yaml:3", "without harm", "add harmless_because"]),
    "overexplained": ("]}", "], harmless_because: it is}", ["is not expected", "remove one of the two"]),
    "key": ("expect", "expects", ['no key "expects"', 'did you mean "expect"?']),
    "device": ("]}", "], devices: [tpu]}", ['"tpu" is not known', "'cpu' or 'cuda'"]),
    "timeout": ("]}", "], timeout_s: 1:30}", ['"1:30" is not a number']),
    "protection": ("]}", "], needs: file}", ['no protection "file"', 'did you mean "files"?']),
    "file": ("  k:", "  other:", ["kernels.other", "has no file other.py", "remove the key"]),
    "schema": ("schema: 1", "schema: 2", ["schema"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_corpus_is_named_with_its_remedy(name: str, tmp_path: Path) -> None:
    old, new, parts = FAULTS[name]
    with pytest.raises(InputError) as caught:
        corpus.load([corpora(tmp_path, CHEATS_YAML.replace(old, new))])
    assert all(part in str(caught.value) for part in ("corpus.yaml", *parts)), caught.value


# name: (files of the cheats, part of the message)
FILE_FAULTS = {
    "not_listed": ({"extra": KERNEL}, "extra.py: is not in corpus.yaml"),
    "no_docstring": ({"k": "def run(*inputs): ...\n"}, "k.py: has no docstring"),
    "gone": ({"k": ""}, "has no file k.py"),
}


@pytest.mark.parametrize("name", FILE_FAULTS)
def test_files_and_corpus_agree(name: str, tmp_path: Path) -> None:
    files, part = FILE_FAULTS[name]
    with pytest.raises(InputError, match=part):
        corpus.load([corpora(tmp_path, **files)])


def test_a_name_stands_in_one_corpus_only(tmp_path: Path) -> None:
    honest = HONEST_YAML.replace("h:", "k:")
    root = corpora(tmp_path, honest=honest)
    folder = root / "kernels" / corpus.HONEST
    (folder / "h.py").rename(folder / "k.py")
    with pytest.raises(InputError, match="has the name of a cheat"):
        corpus.load([root])


def test_a_missing_corpus_is_told_and_the_nearest_root_wins(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no _cheats/corpus\.yaml"):
        corpus.load([tmp_path])
    own = corpora(tmp_path)
    assert [entry.name for entry in corpus.load([own, *Catalog().roots])] == ["k", "h"]


# --- the command --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wrong_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root whose cheat is honest and whose honest kernel is none."""
    root = corpora(tmp_path_factory.mktemp("wrong"))
    honest = ENTRIES[-1].folder / "by_name.py"
    (root / "kernels" / corpus.CHEATS / "k.py").write_text(honest.read_text())
    return root


def test_the_command_fails_for_a_miss_and_a_false_alarm(wrong_root: Path, tmp_path: Path) -> None:
    done = solbench("selftest", "-d", "cpu", "--json", "--root", str(wrong_root), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    rows = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert (rows["k"]["verdict"], rows["k"]["found"], rows["k"]["kind"]) == ("missed", "PASSED", "cheat")
    assert (rows["h"]["verdict"], rows["h"]["expected"], rows["h"]["kind"]) == ("false alarm", ["PASSED"], "honest")
    assert "1 cheat: 1 missed. 1 honest kernel: 1 false alarm." in done.stderr
    assert "] k: missed: " in done.stderr
    assert "] h: false alarm: " in done.stderr
    assert "Returns outputs by name" in done.stderr or "Returns its outputs by name" in done.stderr
    assert os.listdir(tmp_path) == []


def test_an_interrupted_command_shows_what_it_has_found(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "cli",
        "selftest",
        "-d",
        "cpu",
        "--jobs",
        "1",
        "-k",
        "views",
        "-k",
        "hangs_with_children",
    ]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline()]  # the one that hangs goes first
        while not lines[-1].startswith("[1/2]"):
            assert lines[-1], lines
            lines.append(process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert "1 cheat: 1 caught." in rest
    assert "Traceback" not in rest
    assert "Interrupted after 1 of 2." in rest


def test_the_command_repeats_honest_kernels(tmp_path: Path) -> None:
    done = solbench("selftest", "-d", "cpu", "--json", "-k", "views", "--repeat", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    assert (row["verdict"], row["evaluations"]) == ("passed", 2)


def test_what_a_device_cannot_show_is_skipped_with_the_reason(tmp_path: Path) -> None:
    done = solbench("selftest", "-d", "cpu", "-k", "stale_graph", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "runs on cuda, not on cpu" in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_an_unknown_name_is_bad_input(tmp_path: Path) -> None:
    done = solbench("selftest", "-d", "cpu", "-k", "swaped_outputs", cwd=tmp_path)
    assert done.returncode == 2
    assert 'did you mean "swapped_outputs"?' in done.stderr
