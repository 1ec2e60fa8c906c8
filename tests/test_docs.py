"""The documents say what is so: every place they name exists, every number is the code's, every example runs."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

import counterveil
from counterveil import CATALOGUE, Boolean, Categorical, Numeric, Ordinal, errors, make_scheme
from counterveil.cli import main
from counterveil.cli.provision import terms
from counterveil.cli.serve import serve
from counterveil.research import experiments
from counterveil.research.datasets import german_credit
from counterveil.schemes.protocols import Size
from counterveil.service.app import REFUSALS
from counterveil.terms.wire import Manifest, Parameters, SignedTerms, Terms
from patience import LONG
from shell import run_in_shell

ROOT = Path(__file__).parent.parent
PAPER_MAP = (ROOT / "docs" / "paper-map.md").read_text()
README = (ROOT / "README.md").read_text()
DEPLOY = (ROOT / "docs" / "deploy.md").read_text()
WIRE = (ROOT / "docs" / "wire.md").read_text()


def table_rows(text: str, columns: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if len(row) == columns and not row[0].startswith("---")]


def test_readme_examples_run() -> None:
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_readme_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 150
    assert not [line for line in lines if len(line) > 100]


def test_prose_wraps_at_100_columns() -> None:
    """Tables and code may be longer where they must."""
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.S | re.M)
        assert not [line for line in prose.splitlines() if len(line) > 100 and not line.startswith("|")], document.name


def test_from_csv_to_explanation_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's own code, in a folder of its own; the first block is the promise of under twenty lines."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "csv-to-explanation.md").read_text(), flags=re.S)
    code = [line for line in blocks[0].splitlines() if line.strip() and not line.startswith("#")]
    assert len(code) < 20
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "src" / "counterveil" / "research" / "data" / "german_credit.csv", tmp_path)
    space: dict[str, Any] = {}
    for block in blocks:
        exec(block, space)
    said = capsys.readouterr().out.splitlines()
    assert space["found"].feasible
    assert "from" in said[0]
    assert not space["nothing"].feasible
    assert said[1].startswith("No accepted row satisfies your constraints.")


@pytest.mark.slow
def test_the_commands_of_the_readme_as_printed(tmp_path: Path) -> None:
    """The README's own commands, in one shell: the first deployment, what is given away, the paper, speed."""
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.S)
    assert len(blocks) == 3
    commands = "\n".join(blocks)
    frame, _ = german_credit()
    frame.rename({"credit": "verdict"}).write_csv(tmp_path / "people.csv")
    person = {name: frame[name][1] for name in frame.columns if name != "credit"}
    (tmp_path / "me.json").write_text(json.dumps(person))
    said = run_in_shell(commands, tmp_path)
    assert "All is well." in said
    assert "What would have been accepted" in said
    assert "Bytes on the connections" in said
    assert "What one question gives away" in said
    assert "attacks recovered every row" in said
    assert (tmp_path / "receipt.json").exists()


def test_every_command_in_the_documents_has_the_options_that_it_is_given() -> None:
    """Also those that are not run, because they take long or need two organisations."""
    seen = set()
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), flags=re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines() if language in ("", "sh") else ():
                words = shlex.split(line, comments=True)
                if words[:1] != ["counterveil"] or "…" in words:
                    continue
                command: click.Command = main
                given = words[1:]
                while isinstance(command, click.Group):
                    command = command.get_command(click.Context(command), given.pop(0)) or pytest.fail(line)
                end = next((n for n, word in enumerate(given) if word in ("&", "2>", "<")), len(given))
                command.make_parser(click.Context(command)).parse_args(given[:end])
                seen.add(command.name)
    assert len(seen) > 12


def test_every_setting_and_refusal_is_documented() -> None:
    for option in (*serve.params, *terms.params):
        if isinstance(option, click.Option) and option.name not in ("key", "output"):
            assert f"`{option.opts[-1]}`" in DEPLOY, option.opts
    for code, (status, _) in REFUSALS.items():
        assert f"| {status} | `{code}` |" in WIRE, code
    for struct in (Terms, Manifest, Parameters, SignedTerms):
        for name in struct.__struct_encode_fields__:
            assert f"`{name}`" in WIRE, name


def test_the_errors_page_has_every_error_and_no_other() -> None:
    """Refusals with their status, errors and warnings of Python, and what only the applicant's side says."""
    parts = re.split(r"^## (.*)$", (ROOT / "docs" / "errors.md").read_text(), flags=re.M)
    row = re.compile(r"^\| `(\w+)` \|(?: (\d+) \|)?", flags=re.M)
    named = {title: row.findall(text) for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    statuses = [(code, str(status)) for code, (status, _) in REFUSALS.items()]
    assert sorted(named["What a server refuses"]) == sorted(statuses)
    kinds = {"Errors of commands and in Python": errors.CounterveilError, "Warnings": errors.CounterveilWarning}
    for title, base in kinds.items():
        defined = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, base)]
        assert sorted(name for name, _ in named[title]) == sorted(each.__name__ for each in defined)
    source = ROOT / "src" / "counterveil"
    refused = {code for path in source.rglob("*.py") for code in re.findall(r'Refused\(\s*"(\w+)"', path.read_text())}
    script = "".join(path.read_text() for path in (source / "applicant" / "web").rglob("*.js"))
    shown = set(re.findall(r'Trouble\("(\w+)"', script))
    listed = {code for code, _ in named["What the page says"]}
    assert len(refused) > 15
    assert len(shown) > 15
    assert (refused | shown) - set(REFUSALS) <= listed
    assert not {code for code in listed if f'"{code}"' not in script}


def test_the_experiments_page_prints_what_comes_out() -> None:
    page = (ROOT / "docs" / "experiments.md").read_text()
    for _, _, printed, earlier in experiments.SYNTHETIC[:4]:  # which test_leakage.py computes
        assert f"| {printed} | {earlier:.5f} |" in page
    for name in re.findall(r"\(figures/(\w+\.png)\)", page):
        assert (ROOT / "docs" / "figures" / name).read_bytes().startswith(b"\x89PNG")


def test_every_command_is_in_the_readme_or_in_the_page_of_commands() -> None:
    pages = README + (ROOT / "docs" / "command-line.md").read_text()
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        names = [f"{name} {sub}" for sub in command.commands] if isinstance(command, click.Group) else [name]
        for each in names:
            assert f"counterveil {each} " in pages, each


def test_every_preference_and_parameter_is_documented() -> None:
    page = (ROOT / "docs" / "csv-to-explanation.md").read_text()
    for preference in dataclasses.fields(counterveil.Preferences):
        assert f"`{preference.name}`" in page
    page = (ROOT / "docs" / "schema.md").read_text()
    for kind in (Numeric, Ordinal, Categorical, Boolean):
        for name in kind.__struct_fields__:
            assert f"`{name}`" in page or f"`{name} = " in page, name


@pytest.mark.slow
def test_the_demo_finds_what_a_search_in_the_clear_finds() -> None:
    """Two real server processes, a ticket, a question."""
    once = os.environ | {"ONCE": "1"}
    demo = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        capture_output=True,
        text=True,
        check=True,
        env=once,
        timeout=LONG,
    )
    assert "Bytes on the connections" in demo.stdout
    assert "Same cost as a search in the clear: yes." in demo.stdout
    assert " rows" not in demo.stdout  # it serves regions
    assert "make demo" in README
    assert "make test" in README


def test_readme_shows_every_scheme_with_its_true_numbers() -> None:
    rows = [row for row in table_rows(README, 6) if row[0].startswith("`")]
    assert [row[0].strip("`") for row in rows] == list(CATALOGUE)
    R, L, d, M, d_min = 7, 3, 20, 57, 5
    for name, pair, servers, symbols, above, _ in rows:
        key = name.strip("`")
        fixed = CATALOGUE[key][0] in ("euclidean", "fixed")
        parameters: dict[str, Any] = {} if fixed else {"max_weight": L}
        scheme = make_scheme(key, largest=R, d=d, d_min=d_min if "mask" in key else 1, **parameters)
        assert tuple(pair.split(" × ")) == CATALOGUE[key]
        assert int(servers) == scheme.servers
        total = sum(each.up * scheme.servers + sum(each.down) for each in scheme.requests(Size(M)))
        assert value(symbols, d=d, M=M) == total
        assert scheme.field.q == counterveil.smallest_prime_above(value(above, R=R, L=L, d=d, d_min=d_min))


def value(formula: str, **letters: int) -> int:
    """Work out a formula as it is printed: 2R²Ld + d_min - 1."""
    total = 0
    for sign, term in re.findall(r"(^|[+-]) ?([^ ]+)", formula):
        product = 1
        for part in re.findall(r"d_min|\d+|[A-Za-z][²⁴]?", term):
            power = {"²": 2, "⁴": 4}.get(part[-1], 1)
            product *= int(part) if part.isdigit() else letters[part.rstrip("²⁴")] ** power
        total += -product if sign == "-" else product
    return total


@pytest.mark.parametrize(
    ("formula", "expected"), [("2R²Ld", 2 * 49 * 3 * 20), ("R²d + d_min - 1", 984), ("6d + 3M - 3", 288)]
)
def test_formulas_are_read_as_printed(formula: str, expected: int) -> None:
    assert value(formula, R=7, L=3, d=20, M=57, d_min=5) == expected


def test_every_place_in_the_paper_map_exists() -> None:
    places = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", PAPER_MAP)
    assert len(places) > 40
    for file, symbol in places:
        if file.startswith("test_"):
            assert f"def {symbol}(" in (ROOT / "tests" / file).read_text(), (file, symbol)
            continue
        found: object = importlib.import_module("counterveil." + file.removesuffix(".py").replace("/", "."))
        for part in symbol.split("."):
            found = getattr(found, part)


def test_every_test_and_command_that_the_paper_names_exists() -> None:
    """Each test stands in the file that is named before it; each command takes its arguments."""
    page = (ROOT / "docs" / "paper.md").read_text()
    lines = page.splitlines()
    assert len(lines) <= 430
    assert max(map(len, lines)) <= 100
    named, commands, source = 0, 0, ""
    for span in re.findall(r"`([^`]+)`", page):
        words = shlex.split(span) if span.startswith(("counterveil ", "benchmarks/")) else [span]
        if re.fullmatch(r"(adversary/)?test_\w+\.py", span):
            source = (ROOT / "tests" / span).read_text()
        elif re.fullmatch(r"test_\w+", span):
            assert f"def {span}(" in source, span
            named += 1
        elif words[0] == "counterveil":
            command = main.get_command(click.Context(main), words[1])
            assert command is not None, span
            command.make_context(words[1], words[2:], resilient_parsing="BUNDLE" in words)
            commands += 1
        elif words[0].startswith("benchmarks/"):
            text = (ROOT / words[0]).read_text()
            assert all(f'"{word}"' in text for word in words if word.startswith("--")), span
            commands += 1
    assert named > 15
    assert commands > 6


def test_every_label_cited_in_the_code_is_in_the_paper_map() -> None:
    cited = set()
    for path in (ROOT / "src").rglob("*.py"):
        for paragraph in re.findall(r"Paper:(.*?)(?:\n\s*\n|\"\"\")", path.read_text(), flags=re.S):
            cited.update(re.findall(r"`([^`]+)`", paragraph))
    assert len(cited) > 8
    assert not {label for label in cited if f"`{label}`" not in PAPER_MAP}


def test_every_module_has_its_line_and_stands_in_import_order() -> None:
    """The README beside the packages has a table for each, and they stand in the order that `make check` holds."""
    source = ROOT / "src" / "counterveil"
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {each["containers"][0]: each["layers"] for each in contracts if each["type"] == "layers"}
    for package, text in _tables((source / "README.md").read_text()).items():
        listed = [row[0].strip("`") for row in table_rows(text, 2)[1:]]
        folder = source if package == "counterveil" else source / package
        found = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert set(listed) == found - {"__init__"}, package
        name = "counterveil" if package == "counterveil" else f"counterveil.{package}".replace("/", ".")
        depth = {module: n for n, layer in enumerate(reversed(layers[name])) for module in layer.split(" | ")}
        assert [depth[module] for module in listed] == sorted(depth.values()), package


def _tables(text: str) -> dict[str, str]:
    """Return the text under each heading that names a package."""
    parts = re.split(r"^## `([\w/]+)`.*$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_promise_has_its_line_and_its_test() -> None:
    """Links into the threat model lead somewhere; every line of it is linked to, and names a test that exists."""
    model = (ROOT / "docs" / "threat-model.md").read_text()
    lines = set(re.findall(r'<a id="(\w+)"></a>', model))
    linked = set()
    for name in ("README.md", "docs/deploy.md", "docs/sealed.md"):
        found = re.findall(r"threat-model\.md#(\w+)", (ROOT / name).read_text())
        assert len(found) > 5, name
        linked |= set(found)
    assert linked <= lines
    assert {line for line in lines if line.startswith("p")} <= linked
    for promise in re.findall(r"^\| <a id.*$", model, flags=re.M):
        tests = re.findall(r"`((?:adversary/)?\w+\.py)`", promise)
        assert tests, promise
        for test in tests:
            assert (ROOT / "tests" / test).exists(), test


def test_every_rule_that_is_cited_is_written_down() -> None:
    """The code, the tests and the documents cite rules by number; docs/protocol.md has each, once."""
    rules = re.findall(r"^\*\*Rule (\d+)\.", (ROOT / "docs" / "protocol.md").read_text(), flags=re.M)
    assert rules == [str(n) for n in range(1, len(rules) + 1)]
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js"), *(ROOT / "docs").rglob("*.md")]
    cited = [n for path in files for n in re.findall(r"[Rr]ules? (\d+)", path.read_text())]
    assert len(cited) > 30
    assert set(cited) <= set(rules)


def test_version_is_the_same_everywhere() -> None:
    assert f"version: {counterveil.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[0] == counterveil.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/counterveil/__init__.py"


def test_links_within_the_documents_lead_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]
    assert len(documents) > 15
    for document in documents:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", document.read_text()):
            path = document.parent / target if target else document
            assert path.exists(), (document.name, target)
            assert not anchor or anchor in _anchors(path.read_text()), (document.name, target, anchor)


def _anchors(text: str) -> set[str]:
    """Return the anchors of a document: those written down, and those of its headings."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
    return set(re.findall(r'<a id="(\w+)">', text)) | {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
    }
