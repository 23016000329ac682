"""Imports flow one way: a package may use what stands on a lower floor, and nothing else."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parent.parent / "tfm"

# From the bottom up. `config` is an engine below everything, except for `config.registries`, which
# lists the registries that a user's file may extend, and the modules that need it.
FLOORS = [
    ["disk"],
    ["config", "terminal"],
    ["evaluate.metric"],
    ["runtime", "run.folder"],
    ["ops"],
    ["data", "parallel"],
    ["layers"],
    ["models", "optim"],
    ["objectives", "decode", "describe"],
    ["evaluate"],
    ["config.registries"],
    ["config.files"],
    ["run"],
    ["interop", "check"],
    ["train", "explain"],
    ["report"],
    ["sweep"],
    ["bench"],
    ["cli"],
    ["__main__"],
]
FLOOR = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}


def imports(path):
    """Yields the names that a file imports when it runs; type checkers alone may go in circles."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layering"
            yield from ([f"{node.module}.{a.name}" for a in node.names] if node.module else [])
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names)


def package(parts):
    first = parts[0].removesuffix(".py")
    both = ".".join([first, *(part.removesuffix(".py") for part in parts[1:2])])
    return both if both in FLOOR else first


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        if path.name != "__init__.py":
            yield path, package(path.relative_to(ROOT).parts)


def test_every_package_has_its_floor():
    assert {own for _, own in modules()} <= set(FLOOR)


def test_imports_flow_one_way():
    for path, own in modules():
        for name in imports(path):
            first, *rest = name.split(".")
            assert first not in ("experiments", "configs", "tests"), f"{path} imports {name}"
            if first != "tfm" or not rest:
                continue
            used = package(rest)
            if used != own:
                assert FLOOR[used] < FLOOR[own], f"{path} imports {name}, which stands above it"


def test_who_knows_which_library():
    """Layers are built from specs, not from configs; `ops` are of use without Flax."""
    for path, own in modules():
        used = {name.partition(".")[0] for name in imports(path)}
        if FLOOR[own] < FLOOR["models"]:
            assert "ml_collections" not in used, path
        if own == "ops":
            assert not used & {"flax", "optax", "orbax"}, path


def test_modules_within_a_package_do_not_go_in_circles():
    graph = {}
    for path, _ in modules():
        own = "tfm." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        graph[own] = {name for name in imports(path) if name.startswith("tfm.")}
    graph = {
        own: {m for m in graph for name in names if name == m or name.startswith(f"{m}.")}
        for own, names in graph.items()
    }
    done, path = set(), []

    def visit(module):
        assert module not in path, f"a circle: {' → '.join([*path, module])}"
        if module in done:
            return
        path.append(module)
        for used in sorted(graph[module]):
            visit(used)
        done.add(path.pop())

    for module in graph:
        visit(module)
