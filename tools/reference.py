"""Write ``docs/reference``: what users may import, from the docstrings of the package.

All modules of operators, sensors, triggers, hooks and links are public, and of other modules the names that
:data:`PAGES` lists. A name with a leading underscore is private.

Usage: ``python -m tools.reference [--check]``.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "airflow_cdc_provider"
FOLDER: Final = ROOT / "docs" / "reference"
PUBLIC_FOLDERS: Final = ("operators", "sensors", "triggers", "hooks", "links")

Modules = dict[str, tuple[str, ...] | None]
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_SECTION: Final = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Examples?)::?$")
_TITLES: Final = {"Args": "Arguments", "Example": "Example", "Examples": "Example"}
_ROLE: Final = re.compile(r":\w+:`~?\.?(?:[\w.]+\.)?(\w+)`")


@dataclass(frozen=True)
class Page:
    """A page of the reference.

    Args:
        name: Its file name without ``.md``.
        title: Its heading.
        text: What it is for.
        modules: The public names of each of its modules; None for all.
        methods: Whether users call or override methods of these classes.
    """

    name: str
    title: str
    text: str
    modules: Modules
    methods: bool = True


def folder_modules(*folders: str) -> Modules:
    """Return the public modules of some folders of the package, with all their names."""
    files = [file for folder in folders for file in sorted((ROOT / PACKAGE / folder).glob("[!_]*.py"))]
    return {f"{file.parent.name}.{file.stem}": None for file in files}


PAGES: Final = (
    Page(
        "operators",
        "Operators",
        "Examples, results and errors: [operators](../operators/stages.md).",
        folder_modules("operators", "links"),
        methods=False,
    ),
    Page(
        "sensors",
        "Sensors",
        "Each also waits in the triggerer, with `deferrable=True`.",
        folder_modules("sensors"),
        methods=False,
    ),
    Page(
        "triggers",
        "Triggers",
        "Deferred sensors and operators use them; operators of your own may too.",
        folder_modules("triggers"),
        methods=False,
    ),
    Page(
        "hooks",
        "Hooks",
        "Set-up of the connections: the page of each source.",
        folder_modules("hooks"),
    ),
    Page(
        "connector",
        "Connectors, task groups and assets",
        "The declaration of a connector, and what DAGs make of it.",
        {
            "connector.declaration": ("Connector", "ConnectorLike", "load_connector", "to_connector"),
            "pipeline": None,
            "assets": ("changes_asset", "mirror_asset", "mirrors_alias"),
        },
    ),
    Page(
        "exceptions",
        "Exceptions",
        "One class per reaction of the caller. Where a retry doesn't help, operators raise "
        "`AirflowFailException`.",
        {
            "exceptions": (
                "CdcError",
                "ConfigurationError",
                "TransientError",
                "PositionLost",
                "ReshardStopped",
                "SchemaUnknown",
                "CorruptInput",
                "CommitConflict",
                "CommitStateUnknown",
                "OffsetMissing",
            )
        },
    ),
    Page(
        "custom-classes",
        "Custom classes",
        "Interfaces of the classes and functions that a declaration names as `package.module:name`. The job "
        "must be able to import them.",
        {
            "connector.snapshotter": ("Snapshotter", "EVERYTHING"),
            "events.topics": ("TopicNamingStrategy", "topic_name"),
            "sources.mongodb.authentication": ("AuthenticationProvider",),
            "sources.converters": (),
        },
    ),
    Page(
        "sources",
        "Sources",
        "What a distribution implements that adds a source: [add a source](../add-a-source.md).",
        {
            "sources.plugin": ("SourcePlugin", "SourceOptions", "options_of"),
            "options": ("option",),
            "sources.contract.source": ("Source",),
            "sources.contract.reader": ("Reader", "ReadMetrics"),
            "sources.contract.codec": ("Codec",),
            "sources.contract.values": (
                "Offset",
                "Finding",
                "ReadLimit",
                "SegmentCounts",
                "Plan",
                "Lag",
                "SnapshotPlan",
                "ChunkRequest",
                "ChunkPlan",
                "Decoded",
            ),
            "sources.planned_ranges": ("PlannedRanges",),
            "sources.event_source": ("SourceEvents",),
            "changes.record": ("CHANGE_SCHEMA", "change_batch"),
            "changes.contribution": ("CONTRIBUTION_SCHEMA", "generations"),
            "changes.fence": ("Fence",),
        },
    ),
)


def module_path(module: str) -> Path:
    """Return the file of a module, whose name is relative to the package."""
    return ROOT / PACKAGE / (module.replace(".", "/") + ".py")


def public_names(page: Page, module: str) -> tuple[str, ...]:
    """Return the public names of a page's module."""
    listed = page.modules[module]
    return tuple(_definitions(ast.parse(module_path(module).read_text()))) if listed is None else listed


def index() -> str:
    """Return the page ``index.md``."""
    lines = [
        "# Reference",
        "",
        "These pages list what DAGs, plug-ins and other distributions may import. Versions keep it as the "
        "[change log](../../CHANGELOG.md) says.",
        "",
        "Everything else is private and changes without notice: names and modules with a leading underscore, "
        "and all modules that no page lists, such as those of `changes`, `connections`, `events`, `feeds`, "
        "`jobs`, `kafka`, `lake`, `migration`, `pulsar`, `signals`, `tasks` and `transfer`. In `operators`, "
        "`sensors`, `triggers`, `hooks` and `links` each name without an underscore is public.",
        "",
        "| page | names |",
        "|---|---|",
    ]
    for page in PAGES:
        names = [f"`{name}`" for module in page.modules for name in public_names(page, module)]
        lines.append(f"| [{page.title}]({page.name}.md) | {', '.join(names)} |")
    lines.append("| [Command line](../cli.md) | the commands of `airflow cdc`, their output and exit codes |")
    return "\n".join(lines) + "\n"


def rendered(page: Page) -> str:
    """Return the text of a page."""
    lines = [f"# {page.title}", "", page.text, ""]
    for module in page.modules:
        tree = ast.parse(module_path(module).read_text())
        definitions = _definitions(tree)
        lines += [f"## `{PACKAGE}.{module}`", "", *_markdown(ast.get_docstring(tree) or ""), ""]
        for name in public_names(page, module):
            lines += [f"### {name}", "", *_definition(definitions[name], page.methods)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"


def _definitions(tree: ast.Module) -> dict[str, Definition | str]:
    """Return a module's public definitions by name; of a constant, its documentation."""
    found: dict[str, Definition | str] = {}
    for node, after in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        if isinstance(node, Definition):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found[ast.unparse(target)] = _text(after)
    return {name: node for name, node in found.items() if not name.startswith("_")}


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def _definition(node: Definition | str, methods: bool) -> list[str]:
    if isinstance(node, str):
        return [*_markdown(node), ""]
    lines = [*_signature(node), *_markdown(ast.get_docstring(node) or ""), ""]
    if isinstance(node, ast.ClassDef) and methods:
        for method in (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)):
            if not method.name.startswith("_") and ast.get_docstring(method):
                lines += [f"#### {node.name}.{method.name}", "", *_definition(method, methods)]
    return lines


def _signature(node: Definition) -> list[str]:
    if isinstance(node, ast.ClassDef):
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                return _call(node.name, method, "")
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return [f"Base: `{bases}`", ""] if bases else []
    returns = ast.unparse(node.returns) if node.returns else ""
    if any(ast.unparse(one) in ("property", "cached_property") for one in node.decorator_list):
        return [f"Property of type `{returns}`.", ""]
    return _call(node.name, node, f" -> {returns}")


def _call(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, returns: str) -> list[str]:
    arguments = re.sub(r"^(self|cls)(, |$)", "", ast.unparse(function.args))
    lines = textwrap.wrap(
        f"{name}({arguments}){returns}", 110, subsequent_indent="    ", break_on_hyphens=False
    )
    return ["```text", *lines, "```", ""]


def _markdown(docstring: str) -> list[str]:
    """Translate a docstring in Google's style."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\n(?=\S)", docstring):
        first, _, rest = paragraph.partition("\n")
        section = _SECTION.match(first)
        lines += [
            "",
            *(_section(section[1], textwrap.dedent(rest).strip("\n")) if section else _body(paragraph)),
        ]
    return lines[1:]


def _section(section: str, text: str) -> list[str]:
    if section.startswith("Example"):
        return _example(text)
    if section in ("Returns", "Yields"):
        return [f"{section}: {_inline(' '.join(text.split()))}"]
    items = [" ".join(item.split()).partition(": ") for item in re.split(r"\n(?=\S)", text)]
    return [f"{_TITLES.get(section, section)}:", "", *(f"- `{name}`: {_inline(of)}" for name, _, of in items)]


def _body(text: str) -> list[str]:
    """Translate a paragraph, with the literal block after it, if any."""
    text, mark, block = text.partition("::\n\n")
    if not mark:
        return [_inline(text)]
    return [_inline(f"{text}:"), "", *_example(textwrap.dedent(block).strip("\n"))]


def _example(text: str) -> list[str]:
    return [f"```{'pycon' if text.startswith('>>>') else 'python'}", text, "```"]


def _inline(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def main() -> int:
    """Write the pages, or with ``--check`` compare them; return the exit code."""
    pages = {"index": index(), **{page.name: rendered(page) for page in PAGES}}
    files = {FOLDER / f"{name}.md": text for name, text in pages.items()}
    stale = [file for file, text in files.items() if not file.exists() or file.read_text() != text]
    if "--check" in sys.argv[1:]:
        for file in stale:
            print(f"{file.relative_to(ROOT)} is out of date: make reference")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for file in stale:
        file.write_text(files[file])
    return 0


if __name__ == "__main__":
    sys.exit(main())
