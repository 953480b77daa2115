"""Counts that warn when code becomes hard to read.

They are alarms, not aims: a better count is worth nothing if the code is not easier to read.
"""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TypeGuard

VAGUE_NAMES = frozenset(
    ["one", "found", "own", "known", "made", "each", "told", "mine", "ours", "theirs"]
)
"""Names that do not say what they hold."""

WIDE_LINE = 25
"""A line with this many tokens or more counts as wide."""

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_SEQUENCES = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one file, or the sums over several files."""

    code_lines: int = 0
    """Lines that are not blank, comment or docstring."""
    body_lines: int = 0
    """Code lines without imports."""
    tokens: int = 0
    """Tokens of the body lines."""
    wide_lines: int = 0
    """Body lines of `WIDE_LINE` tokens or more."""
    statements: int = 0
    """Statements without imports and docstrings."""
    vague_names: int = 0
    """Uses of `VAGUE_NAMES`."""
    packed_constants: int = 0
    """Assignments of several values in one statement at module level."""
    conditional_products: int = 0
    """Texts and lists times a condition, such as `"s" * (n != 1)`."""

    def __add__(self, other: "Counts") -> "Counts":
        names = [field.name for field in fields(Counts)]
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def vague_names_per_1000_lines(self) -> float:
        return _per_1000(self.vague_names, self.code_lines)

    @property
    def tokens_per_line(self) -> float:
        return round(self.tokens / max(self.body_lines, 1), 2)

    @property
    def wide_lines_per_1000(self) -> float:
        return _per_1000(self.wide_lines, self.body_lines)


def _per_1000(number: int, lines: int) -> float:
    return round(1000 * number / max(lines, 1), 1)


def count(source: str) -> Counts:
    """The counts of a file's source."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    docstring_lines = _lines_of(node for node in nodes if _is_docstring(node))
    import_lines = _lines_of(node for node in nodes if _is_import(node))
    code_lines: set[int] = set()
    tokens_by_line = Counter[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        first_line = token.start[0]
        if token.type in _NO_CODE or first_line in docstring_lines:
            continue
        code_lines.update(range(first_line, token.end[0] + 1))
        if first_line not in import_lines:
            tokens_by_line[first_line] += 1
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    return Counts(
        code_lines=len(code_lines),
        body_lines=len(code_lines - import_lines),
        tokens=tokens_by_line.total(),
        wide_lines=sum(number >= WIDE_LINE for number in tokens_by_line.values()),
        statements=sum(not _is_docstring(node) and not _is_import(node) for node in statements),
        vague_names=sum(_name_of(node) in VAGUE_NAMES for node in nodes),
        packed_constants=sum(_is_packed(statement) for statement in tree.body),
        conditional_products=sum(_is_conditional_product(node) for node in nodes),
    )


def _lines_of(nodes: Iterable[ast.stmt]) -> set[int]:
    lines: set[int] = set()
    for node in nodes:
        lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def _is_import(node: ast.AST) -> TypeGuard[ast.stmt]:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_docstring(node: ast.AST) -> TypeGuard[ast.stmt]:
    """Return whether a text is the docstring of a module, class, function, field or constant."""
    return isinstance(node, ast.Expr) and _is_text(node.value)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


def _is_packed(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Tuple)
        and isinstance(statement.value, ast.Tuple)
    )


def _is_conditional_product(node: ast.AST) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    pairs = ((node.left, node.right), (node.right, node.left))
    return any(
        (_is_text(factor) or isinstance(factor, _SEQUENCES)) and _is_condition(other)
        for factor, other in pairs
    )


def _is_condition(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _last_name(node.func).startswith(("bool", "is_", "has_"))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare) or _last_name(node).startswith(("is_", "has_"))


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
