"""Who may import whom. A module that no layer names fails the test: say where it belongs."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("emitters", "results", "search_spaces", "tuner")

# Layers and the modules or packages in each. What stands in a layer may import that layer.
LAYERS: dict[str, tuple[str, ...]] = {
    "values": ("results.expression", "results.plan", "results.trial"),
    "results": ("results",),
    "emitters": ("emitters",),
    "spaces": ("search_spaces",),
    "simulator": ("tuner.simulator",),
    "sanitizer": ("tuner.sanitize", "tuner.arguments"),
    "tools": ("tuner", "tuner.names", "tuner.locks", "tuner.pool", "tuner.journal", "tuner.threads"),
    "assembler": ("tuner.sass", "tuner.cubin", "tuner.ptxas"),
    "model": ("tuner.cost_model", "tuner.occupancy", "tuner.streaming", "tuner.work"),
    "devices": ("tuner.devices",),
    "samplers": ("tuner.samplers",),
    "baselines": ("tuner.baselines", "tuner.library_calls"),
    "pipeline": ("tuner.pipeline", "tuner.gate"),
    "study": (
        "tuner.loop",
        "tuner.study",
        "tuner.replaying",
        "tuner.task",
        "tuner.warm_start",
        "tuner.ledger",
        "tuner.line",
        "tuner.twins",
        "tuner.schedules",
        "tuner.summary",
        "tuner.progress",
        "tuner.reading",
        "tuner.exporting",
        "tuner.explored",
        "tuner.importance",
        "tuner.coverage",
        "tuner.fresh",
        "tuner.checking",
        "tuner.single",
        "tuner.finals",
        "tuner.closing",
        "tuner.promote",
        "tuner.freezing",
        "tuner.doctor",
        "tuner.mutation",
    ),
    "commands": ("tuner.cli", "tuner.commands"),
}

# Which other layers each may import. `values` are leaves that everybody may have, except the simulator.
ALLOWED: dict[str, set[str]] = {
    "values": set(),
    "results": {"values"},
    "emitters": {"values"},
    "spaces": {"values", "emitters"},
    "simulator": set(),
    "sanitizer": {"simulator"},
    "tools": set(),
    "assembler": {"emitters"},
    "model": {"values", "emitters", "assembler"},
    "devices": {"values", "results", "emitters", "tools", "assembler", "simulator", "model"},
    "samplers": {"values", "emitters", "spaces", "tools", "model"},
    "baselines": {"values", "emitters", "devices"},
    "pipeline": {"values", "emitters", "spaces", "assembler", "simulator", "devices"},
    "study": set(LAYERS) - {"commands"},
    "commands": set(LAYERS),
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def imports_of(path: Path, types_too: bool = True) -> set[str]:
    """Modules of ours that a file imports, anywhere in it.

    Args:
        path: The file.
        types_too: Also where only a type checker looks.
    """
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unseen: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types_too:
            unseen |= {inner for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            # `from package import module` imports the module; a name that is none is the package's own.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return {name for name in found if name.split(".")[0] in PACKAGES}


def member_of(module: str) -> str:
    """The entry of the table that a module belongs to: its own, or that of the nearest package around it."""
    named = {name for members in LAYERS.values() for name in members}
    name = module
    while name and (name not in named or (name == "tuner" and module != "tuner")):
        name = name.rpartition(".")[0]
    assert name, f"{module} is in no layer of tests/test_imports.py; say where it belongs"
    return name


def layer_of(module: str) -> str:
    member = member_of(module)
    return next(layer for layer, members in LAYERS.items() if member in members)


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_what_its_layer_may(module: str) -> None:
    layer = layer_of(module)
    for imported in imports_of(MODULES[module]):
        other = layer_of(imported)
        assert other == layer or other in ALLOWED[layer], f"{module} ({layer}) imports {imported} ({other})"


def test_layers_have_no_circles() -> None:
    """Nor has the table above: each layer can be put after all those that it may import."""
    placed: set[str] = set()
    left = dict(ALLOWED)
    while left:
        ready = [layer for layer, allowed in left.items() if allowed - {layer} <= placed]
        assert ready, f"a circle among {', '.join(left)}"
        placed |= set(ready)
        for layer in ready:
            del left[layer]


def test_modules_and_packages_have_no_circles() -> None:
    """Between packages, and between the single modules of `tuner`."""
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        others = {member_of(name) for name in imports_of(path, types_too=False)}
        graph.setdefault(member_of(module), set()).update(others - {member_of(module)})
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a circle: {' -> '.join((*path[path.index(module) :], module))}"
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_every_layer_exists() -> None:
    named = {name for members in LAYERS.values() for name in members}
    missing = {name for name in named if name not in MODULES}
    assert not missing
    assert ALLOWED.keys() == LAYERS.keys()
