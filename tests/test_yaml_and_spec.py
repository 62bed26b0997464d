"""Every fault of a workload file is an error that names file, line, key, value and remedy."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from conftest import TOY_REFERENCE, TOY_YAML

from harness.catalog import Catalog
from harness.errors import InputError
from harness.spec import KernelModel, ProtocolModel, load_workload, read_model
from harness.strict_yaml import load


def write(folder: Path, text: str) -> Path:
    (folder / "workload.yaml").write_text(text)
    (folder / "reference.py").write_text(TOY_REFERENCE)
    return folder


# name: (text to replace in the toy workload, its replacement, what the message must contain)
FAULTS = {
    "unknown key": ("title:", "titel: x\ntitle:", ["workload.yaml:4", "titel", 'did you mean "title"']),
    "unknown nested key": ("cpu: {scale: 1}", "cpu: {scael: 1}", ["workload.yaml:11", "cpu.scael", '"scale"']),
    "unknown key of an input": ("uniform: [-1, 1]", "unifrm: [-1, 1]", ["inputs.b.unifrm", '"uniform"']),
    "duplicate key": ("schema: 1\n", "schema: 1\nschema: 1\n", ["workload.yaml:2", "schema is given twice"]),
    "duplicate axis": ("  K: 64\n", "  K: 64\n  K: 32\n", ["axes.K is given twice"]),
    "missing key": ("title: Product and row sums\n", "", ["title", "is missing"]),
    "missing tolerance": (", norm_relative_error: 0.01", "", ["outputs.product", "has no norm_relative_error", "give"]),
    "no tolerance at all": (
        "tolerance: {atol: 1e-5, rtol: 1e-3, match_ratio: 0.99, norm_relative_error: 0.01}\n",
        "",
        ["outputs.product", "has no atol"],
    ),
    "a word for a size": ("{rows: 3}", "{rows: 8k}", ["cases[0].axes.rows", '"8k" is not a whole number', "write"]),
    "a size in quotes": ("{rows: 3}", '{rows: "3"}', ["cases[0].axes.rows", "text in quotes", "without quotes"]),
    "octal size": ("{rows: 3}", "{rows: 010}", ["cases[0].axes.rows", '"010"', "write 10"]),
    "octal axis": ("  K: 64", "  K: 010", ["axes.K", "010", "not an arithmetic expression"]),
    "sexagesimal": ("{rows: 3}", "{rows: 1:30}", ["cases[0].axes.rows", '"1:30" is not a whole number']),
    "a fraction for a size": ("{rows: 3}", "{rows: 2.5}", ["cases[0].axes.rows", '"2.5"']),
    "a negative size": ("{rows: 3}", "{rows: -3}", ["cases[0].axes.rows", "-3"]),
    "a zero size": ("{rows: 3}", "{rows: 0}", ["cases[0].axes.rows", "0 is out of place"]),
    "a list for a size": ("{rows: 3}", "{rows: [3]}", ["cases[0].axes.rows", "a list stands where a whole number"]),
    "a word for a number": ("rtol: 1e-3", "rtol: small", ["tolerance.rtol", '"small" is not a number']),
    "an infinite number": ("rtol: 1e-3", "rtol: 1e999", ["tolerance.rtol", "too large"]),
    "not a number": ("rtol: 1e-3", "rtol: .nan", ["tolerance.rtol", '".nan" is not a number']),
    "a ratio over one": ("match_ratio: 0.99", "match_ratio: 99", ["tolerance.match_ratio", "less than or equal to 1"]),
    "an undefined axis": (
        "[R, K], dtype: float32, normal",
        "[R, Q], dtype: float32, normal",
        ["inputs.a.shape[1]", '"Q"', "not defined"],
    ),
    "an axis defined by an undefined one": ("  K: 64", "  K: 2*Z", ["axes.K", '"Z"', "not defined"]),
    "axes in a circle": ("  K: 64", "  K: L/2\n  L: 2*K", ["axes.K", "defined in a circle through L"]),
    "a shape that is no whole number": (
        "[R, K], dtype: float32, normal",
        "[R/2, K], dtype: float32, normal",
        ["inputs.a.shape[0]", '"R/2"', "1.5, which is not a whole number"],
    ),
    "a shape of nothing": (
        "[R, K], dtype: float32, normal",
        "[R-3, K], dtype: float32, normal",
        ["inputs.a.shape[0]", "not above zero"],
    ),
    "a shape that is code": (
        "[R, K], dtype: float32, normal",
        "[\"__import__('os')\", K], dtype: float32, normal",
        ["inputs.a.shape[0]", "uses more than numbers"],
    ),
    "division by zero": ("2*R*K*K", "R/(K-64)", ["work.flops", "divides by zero"]),
    "a runaway power": ("2*R*K*K", "9**9**9", ["work.flops", "exponent"]),
    "a case id twice": ("id: r8", "id: r3", ["cases[1].id", '"r3" stands in cases[0]']),
    "case sizes twice": ("{rows: 8}", "{rows: 3}", ["cases[1]", "has the sizes of cases[0]"]),
    "a case without an axis": ("{rows: 8}", "{}", ["cases[1].axes", '"rows" is missing']),
    "a case with a strange axis": ("{rows: 8}", "{rows: 8, cols: 2}", ["cases[1].axes.cols", "not one of case_axes"]),
    "no source of values": (", uniform: [-1, 1]", "", ["inputs.b", "0 sources"]),
    "two sources of values": ("uniform: [-1, 1]", "uniform: [-1, 1], normal: 1", ["inputs.b", "2 sources"]),
    "a spread of nothing": ("normal: 1/sqrt(K)", "normal: K-64", ["inputs.a.normal", "above 0"]),
    "an unknown dtype": (
        "b: {shape: [K, K], dtype: float32",
        "b: {shape: [K, K], dtype: bf16",
        ["inputs.b.dtype", '"bf16"', "bfloat16"],
    ),
    "an output named as an input": ("  shifted:", "  bias:", ["outputs.bias", "also an input"]),
    "a newer schema": ("schema: 1", "schema: 2", ["schema", "2 is out of place"]),
    "nothing where text belongs": ("title: Product and row sums", "title:", ["title", "text is missing"]),
    "a tag": ("title: Product", "title: !!python/object/apply:os.abort []\nx: Product", ["tag", "remove"]),
    "two documents": ("cases:", "---\ncases:", ["not valid YAML"]),
    "not YAML": ("cases:", "cases: [", ["not valid YAML"]),
    "a merge key": ("cpu: {scale: 1}", "cpu: {<<: {scale: 1}}", ["cpu.<<"]),
    "an axis that is both": ("  R: rows", "  rows: 3\n  R: rows", ["axes.rows", "also one of case_axes"]),
    "an unknown scalable axis": ("scalable_axes: [K]", "scalable_axes: [Q]", ["scalable_axes", '"Q"']),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_workload_file_is_named_with_its_remedy(fault: str, tmp_path: Path) -> None:
    before, after, expected = FAULTS[fault]
    assert before in TOY_YAML
    with pytest.raises(InputError) as caught:
        load_workload(write(tmp_path, TOY_YAML.replace(before, after, 1)))
    message = str(caught.value)
    assert str(tmp_path / "workload.yaml") in message
    assert caught.value.remedy
    for part in expected:
        assert part in message


# (what is written, what it means)
NUMBERS = [("1e-5", 1e-5), ("1E+2", 100.0), ("0.05", 0.05), (".5", 0.5), ("7", 7.0), ("0", 0.0)]


@pytest.mark.parametrize(("written", "meant"), NUMBERS)
def test_a_number_means_what_a_person_reads(written: str, meant: float, tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, TOY_YAML.replace("rtol: 1e-3", f"rtol: {written}")))
    assert workload.case("r3").tolerances["product"].rtol == meant


@pytest.mark.parametrize("word", ["off", "no", "yes", "on", "null_", "1:30", "0o17", "2026-01-01"])
def test_text_stays_text(word: str, tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, TOY_YAML.replace("title: Product and row sums", f"title: {word}")))
    assert workload.model.title == word


@pytest.mark.parametrize(("word", "meant"), [("true", True), ("false", False)])
def test_a_flag_is_true_or_false(word: str, meant: bool, tmp_path: Path) -> None:
    path = tmp_path / "kernel.yaml"
    path.write_text(f"schema: 1\ndestination_passing_style: {word}\n")
    assert read_model(path, KernelModel)[0].destination_passing_style is meant


@pytest.mark.parametrize("word", ["off", "on", "yes", "1", "True", '"true"'])
def test_what_is_not_plainly_a_flag_is_refused(word: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.yaml"
    path.write_text(f"schema: 1\ndestination_passing_style: {word}\n")
    with pytest.raises(InputError, match=r"kernel.yaml:2: destination_passing_style.*write t"):
        read_model(path, KernelModel)


def test_an_alias_bomb_is_refused_with_little_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="aliases expand"):
        load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: &a [*a]", "contains itself"),
        ("[" * 5000, "nests too deeply"),
        ("", "is empty"),
        ("? [1, 2]\n: 3", "a key is not plain text"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_a_hostile_document_is_refused(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=part):
        load(path)


def test_bounded_aliases_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: 1}\nb: *a\n")
    assert load(path).root == {"a": {"x": "1"}, "b": {"x": "1"}}


def test_a_tag_constructs_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    path = tmp_path / "x.yaml"
    path.write_text(f"a: !!python/object/apply:os.mkdir ['{made}']\n")
    with pytest.raises(InputError, match="has the tag"):
        load(path)
    assert not made.exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "none.yaml")


def test_the_hash_follows_values_and_reference_but_not_comments(tmp_path: Path) -> None:
    first = load_workload(write(tmp_path, TOY_YAML)).sha256
    assert load_workload(write(tmp_path, "# a comment\n" + TOY_YAML)).sha256 == first
    assert load_workload(write(tmp_path, TOY_YAML.replace("rows: 8", "rows: 9"))).sha256 != first
    write(tmp_path, TOY_YAML)
    (tmp_path / "reference.py").write_text(TOY_REFERENCE + "\n# another\n")
    assert load_workload(tmp_path).sha256 != first


def test_a_scale_divides_the_scalable_axes_only(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, TOY_YAML))
    case = workload.case("r8", scale=4)
    assert dict(case.axes) == {"rows": 8, "R": 8, "K": 16}
    assert case.flops == 2 * 8 * 16 * 16
    with pytest.raises(InputError, match=r"--scale: 3 does not divide K = 64"):
        workload.case("r8", scale=3)


@pytest.mark.parametrize("kind", ["workloads", "protocols", "devices", "suites"])
def test_the_catalogue_of_the_repository_is_sound(kind: str) -> None:
    catalog = Catalog()
    found = {
        "workloads": lambda: [catalog.workload(n) for n in catalog.workload_folders()],
        "protocols": lambda: [catalog.protocol(n) for n in catalog.protocol_names()],
        "devices": lambda: list(catalog.devices().values()),
        "suites": lambda: [catalog.suite(n) for n in catalog.suite_names()],
    }[kind]()
    assert found


def test_a_protocol_hash_follows_its_values(tmp_path: Path) -> None:
    catalog = Catalog()
    hashes = {catalog.protocol(name).sha256 for name in catalog.protocol_names()}
    assert len(hashes) == len(catalog.protocol_names())
    assert isinstance(catalog.protocol("host"), ProtocolModel)
