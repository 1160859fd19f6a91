"""An import-linter contract that says what a part may import, as an allow-list.

Rules of this file:

- A *part* is what lies directly under the root package: a package (``fencepost.core``) or a module
  (``fencepost.ports``). ``parts`` lists the other parts that it may import; what is not listed is refused.
- Only direct imports count. What an allowed part imports is that part's own contract.
- The root package itself counts as a part named like the package: ``import fencepost`` is the public way in.
- A part that does not exist yet keeps its contract, so the rule is there before the first file is.

The contracts are in ``pyproject.toml``; ``tests/test_imports.py`` breaks each of them once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from importlinter import Contract, ContractCheck, fields, output

if TYPE_CHECKING:
    import grimp

ANYTHING = "*"


def part_of(module: str, *, root: str) -> str:
    """Return the part that `module` belongs to: `root.name`, `root` itself, or an outside package's name."""
    names = module.split(".")
    if names[0] != root:
        return names[0]
    return ".".join(names[:2])


def refusal(
    imported: str,
    *,
    part: str,
    parts: frozenset[str],
    third_party: frozenset[str],
    not_stdlib: frozenset[str],
) -> str | None:
    """Return why `part` may not import `imported`, or None where it may. `*` in a list allows everything."""
    root = part.split(".", maxsplit=1)[0]
    target = part_of(imported, root=root)
    if target == part:
        return None
    if target.split(".")[0] == root:
        return None if target in parts or ANYTHING in parts else f"may not import the part {target}"
    if target in sys.stdlib_module_names:
        return f"may not import {target} of the standard library" if target in not_stdlib else None
    if target in third_party or ANYTHING in third_party:
        return None
    return f"may not import the package {target}"


class MayImport(Contract):  # type: ignore[misc, unused-ignore]
    """A part imports the parts and packages of its lists and nothing else."""

    type_name = "may_import"

    part = fields.StringField()
    parts = fields.SetField(subfield=fields.StringField(), required=False, default=frozenset())
    third_party = fields.SetField(subfield=fields.StringField(), required=False, default=frozenset())
    not_stdlib = fields.SetField(subfield=fields.StringField(), required=False, default=frozenset())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Return whether every direct import of the part is on its lists."""
        part = str(self.part)
        refused: list[tuple[str, str, str, str]] = []
        for importer in sorted(graph.modules):
            if part_of(importer, root=part.split(".", maxsplit=1)[0]) != part:
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                reason = refusal(
                    imported,
                    part=part,
                    parts=_names(self.parts),
                    third_party=_names(self.third_party),
                    not_stdlib=_names(self.not_stdlib),
                )
                if reason is not None:
                    details = graph.get_import_details(importer=importer, imported=imported)
                    lines = ", ".join(str(detail["line_number"]) for detail in details)
                    refused.append((importer, imported, lines, reason))
        return ContractCheck(kept=not refused, metadata={"refused": refused})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each refused import: where it is, what it imports, and the rule."""
        for importer, imported, lines, reason in check.metadata["refused"]:
            output.print_error(f"{importer} (line {lines}) imports {imported}: {self.part} {reason}.")
        output.new_line()


def _names(value: Any) -> frozenset[str]:
    return frozenset(str(name) for name in value)
