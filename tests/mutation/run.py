"""Put small faults into copies of the package and see which of them the tests notice (README.md)."""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from mutants import Mutant, find_mutants, room, sample
from unmapped import likely_tests

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MAP = ROOT / "runs" / "mutation" / "map.json"
RESULTS, REASONS = HERE / "results.json", HERE / "survivors.toml"
START = 3.0
"""Seconds that pytest takes before its first test."""

MARKS = "not slow and not gpu and not data"
COPIED = (
    "factorflow",
    "flows",
    "tests",
    "pyproject.toml",
    "README.md",
    "docs",
    "benchmarks",
    "examples",
    "deploy",
)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=HERE / "config.toml")
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("map", help="find out which test file runs which lines (with coverage)")
    mapping.add_argument("files", nargs="*", help="test files to look at (again); left out: all that are new")
    running = commands.add_parser("run", help="test mutants")
    running.add_argument("--limit", type=int, default=300, help="mutants")
    running.add_argument("--seed", type=int, default=1, help="of the sample")
    running.add_argument("--only", action="append", default=[], help="start of the path; may be repeated")
    running.add_argument("--results", type=Path, default=RESULTS)
    running.add_argument("--new", action="store_true", help="so many that were not tested before, of all")
    running.add_argument(
        "--unmapped", action="store_true", help="without a map: the tests beside, by names, up to the budget"
    )
    running.add_argument("--again", action="store_true", help="test those that survived once more")
    reporting = commands.add_parser("report", help="show the score and the survivors")
    reporting.add_argument("--results", type=Path, default=RESULTS)
    showing = commands.add_parser("show", help="print the fault of a survivor as a diff")
    showing.add_argument("key")
    for command in (mapping, running):
        command.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    config = tomllib.loads(options.config.read_text())
    if options.command == "map":
        return make_map(config, options.files, options.workers)
    if options.command == "report":
        return report(json.loads(options.results.read_text()))
    if options.command == "show":
        return show(options.key)
    return run(config, options)


# Which tests run which lines


def test_files(config: Mapping[str, Any]) -> list[str]:
    """Return the test files that mutants are shown to."""
    names = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    return [name for name in names if not any(fnmatch(name, p) for p in config["unasked"])]


def make_map(config: Mapping[str, Any], files: Sequence[str], workers: int) -> int:
    """Run the test files of each folder in a process under coverage; what is known of others stays."""
    MAP.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(MAP.read_text())["tests"] if MAP.exists() else {}
    there = test_files(config)
    known = {name: found for name, found in known.items() if name.partition("::")[0] in there}
    mapped = {name.partition("::")[0] for name in known}
    wanted = [name for name in there if name in files or (not files and name not in mapped)]
    folders: dict[str, list[str]] = {}
    for name in wanted:
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    with ThreadPoolExecutor(workers) as pool:
        for found in pool.map(_touched, folders.values()):
            known.update(found)
            sources = {source for of in known.values() for source in of["lines"]}
            digests = {source: _digest(ROOT / source) for source in sorted(sources)}
            MAP.write_text(json.dumps({"digests": digests, "tests": known}))
            for name, of in found.items():
                print(f"{of['seconds']:7.1f} s  {name}", flush=True)
    return 0


def _touched(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return seconds and lines by test file; not of files with nothing but slow tests.

    What files share (a fixture of the session, a cache) counts for the first of them only.
    """
    from coverage import CoverageData

    with tempfile.TemporaryDirectory() as folder:
        data, clock = Path(folder) / "data", Path(folder) / "seconds"
        measured = [sys.executable, "-m", "coverage", "run", f"--data-file={data}", "--source=factorflow"]
        environment = _environment(ROOT, SECONDS_OF_TESTS=str(clock))
        environment["PYTHONPATH"] += f"{os.pathsep}{HERE}"
        found = subprocess.run(
            [*measured, "-m", "pytest", *_pytest_options(), "-p", "contexts", *names],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if found.returncode not in (0, 5):  # 5: nothing but slow tests
            raise SystemExit(f"Tests fail without any fault:\n{found.stdout[-3000:]}")
        coverage = CoverageData(str(data))
        coverage.read()
        seconds = json.loads(clock.read_text())
        lines: dict[str, dict[str, list[int]]] = {name: {} for name in seconds}
        for path in sorted(coverage.measured_files()):
            source = str(Path(path).relative_to(ROOT))
            for number, contexts in coverage.contexts_by_lineno(path).items():
                for name in contexts:
                    if name in lines:
                        lines[name].setdefault(source, []).append(number)
    return {n: {"seconds": round(seconds[n] + START, 1), "lines": found} for n, found in lines.items()}


def _pytest_options() -> list[str]:
    # The server has imported packages before pytest could have rewritten them: no fault of a mutant.
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return ["-x", "-q", "-m", MARKS, "-p", "no:cacheprovider", "--no-header", "-rfE", *quiet]


def _environment(tree: Path, **more: str) -> dict[str, str]:
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    fixed = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **threads, **fixed, **more}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tests_for(mutant: Mutant, span: range, config: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """Return the test files that run the lines of a fault: those beside it first, of these its namesake."""
    tests = known["tests"]
    home = [p for glob, patterns in config["home"].items() if fnmatch(mutant.path, glob) for p in patterns]
    stem = Path(mutant.path).stem

    def beside(name: str) -> bool:
        return any(fnmatch(name, p) for p in home)

    def order(name: str) -> tuple[bool, bool, float]:
        return not beside(name), stem not in name.rpartition("/")[2], tests[name]["seconds"]

    compiled = [patterns for glob, patterns in config["compiled"].items() if fnmatch(mutant.path, glob)]
    if compiled:
        asked = [name for name in tests if any(fnmatch(name, p) for p in compiled[0])]
    else:
        fresh = known["digests"].get(mutant.path) == _digest(ROOT / mutant.path)
        touching = {n: set(found["lines"].get(mutant.path, ())) for n, found in tests.items()}
        inside, body = functions_around((ROOT / mutant.path).read_text(), span)
        wanted = set(span) if inside else body
        asked = [name for name, lines in touching.items() if not lines.isdisjoint(wanted)] if fresh else []
        asked = asked or [name for name, lines in touching.items() if lines]
        # What runs when a module is imported is nobody's line, and that of whoever came first.
        asked += [] if inside else [n for n in tests if n not in asked and beside(n)]
    asked.sort(key=order)
    chosen, spent = [], 0.0
    for name in asked:
        if chosen and spent + tests[name]["seconds"] > config["budget"]:
            continue
        chosen.append(name)
        spent += tests[name]["seconds"]
    return chosen


def functions_around(source: str, span: range) -> tuple[bool, set[int]]:
    """Return whether lines run when a function is called, and otherwise the lines of functions that they set.

    Those of the function whose signature or decorators they are, or of the class; else of the whole module.
    """
    tree = ast.parse(source)
    inner: list[ast.FunctionDef | ast.ClassDef | ast.Module] = [tree]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= span[-1] <= (node.end_lineno or first):
                inner.append(node)
    if any(isinstance(node, ast.FunctionDef) and node.body[0].lineno <= span[-1] for node in inner):
        return True, set()
    for around in (inner[-1], tree):
        functions = [node for node in ast.walk(around) if isinstance(node, ast.FunctionDef)]
        lines = {n for f in functions for n in range(f.body[0].lineno, (f.end_lineno or 0) + 1)}
        if lines:
            return False, lines
    return False, set()


# Mutants


def run(config: Mapping[str, Any], options: argparse.Namespace) -> int:
    """Test the mutants of a sample that have no result yet; results are written after each."""
    known, results = None, {}
    if not options.unmapped:
        if not MAP.exists():
            raise SystemExit("First: python tests/mutation/run.py map")
        known = json.loads(MAP.read_text())
    if options.results.exists():
        results = json.loads(options.results.read_text())["mutants"]
    chosen: list[tuple[Mutant, str]] = []
    only = tuple(options.only)
    for mutant in sample(find_mutants(ROOT, config, only), options.seed):
        if len(chosen) == options.limit:
            break
        if options.new and mutant.key in results:
            continue
        changed = mutant.apply((ROOT / mutant.path).read_text())
        if changed is not None:
            chosen.append((mutant, changed))
    done = {k for k, r in results.items() if not (options.again and r["outcome"] == "survived")}
    todo = [(m, text) for m, text in chosen if m.key not in done]
    print(f"{len(chosen)} mutants, {len(todo)} to test")
    lock, free = Lock(), SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for i in range(min(options.workers, len(todo))):
            free.put(Worker(Path(folder) / f"tree{i}"))
        check_worker(free, config, known)

        def one(pair: tuple[Mutant, str]) -> None:
            worker = free.get()
            try:
                found = test_mutant(*pair, worker, config, known)
            finally:
                free.put(worker)
            with lock:
                results[pair[0].key] = found
                _write(options.results, options.seed, results)
                print(f"{found['outcome']:8} {found['seconds']:6.1f} s  {pair[0].key}", flush=True)

        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(one, todo))
        while not free.empty():
            free.get().close()
    return report({"mutants": {m.key: results[m.key] for m, _ in chosen}})


def check_worker(
    free: SimpleQueue[Worker], config: Mapping[str, Any], known: Mapping[str, Any] | None
) -> None:
    """Refuse to go on where tests fail without any fault: every mutant would be noticed."""
    worker = free.get()
    fastest = config["first"]
    if known is not None:
        fastest = min(known["tests"], key=lambda name: known["tests"][name]["seconds"])
    code, output, _ = worker.pytest([fastest], 600)
    if code:
        raise SystemExit(f"{fastest} fails without any fault:\n{output[-3000:]}")
    free.put(worker)


class Worker:
    """A copy of the tree, and a process beside it that runs its tests (`server.py`)."""

    def __init__(self, tree: Path) -> None:
        self.tree, self.output = tree, tree.with_suffix(".output")
        _copy(tree)
        command = [sys.executable, str(HERE / "server.py")]
        self._server = subprocess.Popen(
            command, env=_environment(tree), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def pytest(
        self, tests: Sequence[str], limit: float, cache: Path | None = None, budget: float | None = None
    ) -> tuple[int | None, str, float]:
        """Return exit status (None: out of time), output and seconds of processor time of the tests.

        Compiled code comes from ``cache``, or from the tree. No test begins after ``budget`` seconds.
        """
        temporary = self.tree.with_suffix(".tmp")
        job = {
            "tree": str(self.tree), "output": str(self.output), "limit": limit, "budget": budget,
            "options": [*_pytest_options(), f"--basetemp={temporary}", *tests],
            "environment": {} if cache is None else {"NUMBA_CACHE_DIR": str(cache)},
        }  # fmt: skip
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        found = json.loads(self._server.stdout.readline())
        shutil.rmtree(temporary, ignore_errors=True)
        return found["code"], self.output.read_text(errors="replace"), found["seconds"]

    def close(self) -> None:
        """End the process."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


def _copy(tree: Path) -> Path:
    tree.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            # What is compiled already (*.nbi, *.nbc) comes along.
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("*.pyc", "results"))
        elif source.exists():
            shutil.copy(source, tree / name)
    return tree


def test_mutant(
    mutant: Mutant,
    changed: str,
    worker: Worker,
    config: Mapping[str, Any],
    known: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return whether a fault is noticed, and by which test."""
    target = worker.tree / mutant.path
    source = target.read_text()
    before, after = source.splitlines(), changed.splitlines()
    different = [i for i, (a, b) in enumerate(zip(before, after, strict=False), 1) if a != b]
    span = range(min([mutant.line, *different]), max([mutant.line, *different[:1]]) + 1)
    tests = likely_tests(ROOT, mutant, config) if known is None else tests_for(mutant, span, config, known)
    line = span[-1] - 1
    result: dict[str, Any] = {
        "file": mutant.path, "line": mutant.line, "operator": mutant.operator.split("/")[-1],
        "before": before[line].strip(), "after": after[line].strip() if line < len(after) else "",
        "outcome": "survived", "by": None, "seconds": 0.0, "tests": tests,
    }  # fmt: skip
    if not tests:
        return result | {"by": "no test runs this line"}
    budget = config["budget"] if known is None else None
    limit = 4 * config["budget"]
    if known is not None:
        limit = 90 + 3 * sum(known["tests"][name]["seconds"] for name in tests)
    fresh = Path(tempfile.mkdtemp(dir=worker.tree.parent)) if "/kernels/" in mutant.path else None
    before_it = target.stat()
    target.write_text(changed)
    try:
        code, output, seconds = worker.pytest(tests, limit, fresh, budget)
    finally:
        target.write_text(source)
        os.utime(target, ns=(before_it.st_atime_ns, before_it.st_mtime_ns))  # or all is compiled again
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)
    result["seconds"] = round(seconds, 1)
    if code is None:
        return result | {"outcome": "killed", "by": "timeout"}
    if code:
        failed = [row for row in output.splitlines() if row.startswith(("FAILED", "ERROR"))]
        return result | {"outcome": "killed", "by": failed[0][:160] if failed else output[-160:]}
    return result


def _write(path: Path, seed: int, results: Mapping[str, Any]) -> None:
    ordered = dict(sorted(results.items()))
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"seed": seed, "mutants": ordered}, indent=1) + "\n")
    partial.replace(path)


def report(results: Mapping[str, Any]) -> int:
    """Print the score, by folder too, and the survivors."""
    found = results["mutants"]
    outcomes: dict[str, Counter[str]] = {}
    for result in found.values():
        outcomes.setdefault(room(result["file"]), Counter())[result["outcome"]] += 1
    for name, count in sorted(outcomes.items()):
        print(f"{count['killed']:4} of {count.total():4}  {name}")
    killed = sum(count["killed"] for count in outcomes.values())
    print(f"{killed:4} of {len(found):4}  noticed ({killed / max(len(found), 1):.1%})\n")
    reasons = tomllib.loads(REASONS.read_text()) if REASONS.exists() else {}
    for key, result in sorted(found.items()):
        if result["outcome"] == "survived":
            why = reasons.get(key, result["by"] or "")
            print(f"{key}\n    - {result['before']}\n    + {result['after']}\n    {why}")
    return 0


def show(key: str) -> int:
    """Print a fault as a diff."""
    from difflib import unified_diff

    path, line, column, operator, occurrence = key.split(":")
    source = (ROOT / path).read_text()
    changed = Mutant(path, int(line), int(column), operator, int(occurrence)).apply(source) or source
    print("\n".join(unified_diff(source.splitlines(), changed.splitlines(), path, path, lineterm="", n=2)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
