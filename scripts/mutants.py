"""``make mutants``: change the code that spends money one place at a time, and list the changes no test notices.

mutmut makes the changed versions ("mutants") and runs the tests that reach the changed function, each in a fork of a
process that has imported everything. This file chooses the code, the tests and the kinds of change, and prints the
result. ``scripts/mutants`` installs mutmut and runs this file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutants"
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.yaml"
"""Mutants that behave like the original, each with the reason."""
MODULES = (
    "hcloud/planner/budget.py",
    "hcloud/planner/market.py",
    "hcloud/planner/quota_limits.py",
    "hcloud/planner/spot_preemption.py",
    "hcloud/planner/provisioning/*.py",
    "hcloud/spend_ledger.py",
    "hcloud/apply/machines.py",
)
TESTS = ("tests/planner", "tests/apply", "tests/report/test_parts_sum_up.py", "tests/core", "tests/forecast")
COPIED = ("tests", "providers", "lab", "policies", "profiles", "deploy", "pyproject.toml", "config.example.yaml")
FIRST_TESTS = 12
TEST_S_MAX = 5.0
"""A mutant is tried with the fastest tests that reach it, up to this many seconds of them."""
TEXT_PATTERNS = (
    r"\b(text|numbers|names|named|why|need|reason\.text)\b.*= ",
    r"Reason\(",
    r"emit",
    r"raise ",
    r"^\s+\"[a-z_]+\": ",
)
"""Lines of messages and their numbers, which cost nothing: not changed."""
SETTINGS = {
    "source_paths": ["hcloud"],
    "only_mutate": list(MODULES),
    "also_copy": list(COPIED),
    "do_not_mutate_patterns": list(TEXT_PATTERNS),
    "pytest_add_cli_args": ["-p", "no:xdist", "-p", "no:cacheprovider", "--no-header", "-W", "ignore"],
    "pytest_add_cli_args_test_selection": list(TESTS),
    "use_git_change_detection": False,
    "track_dependencies": False,
    "timeout_multiplier": 5.0,
    "timeout_constant": 2.0,
}


def money_operators() -> list[tuple[type, Any]]:
    """Return the kinds of change: mutmut's for arithmetic, comparisons, conditions and numbers, and five of our own.

    Left out are mutmut's changes of strings, and its ``None`` for every argument and value, which any test notices.
    """
    import libcst as cst
    import libcst.matchers as m
    from mutmut.mutation import mutators

    def negate_condition(node: Any) -> Iterator[Any]:
        if not isinstance(node.test, (cst.Comparison, cst.BooleanOperation, cst.UnaryOperation)):
            yield node.with_changes(test=_negated(node.test))

    def _negated(test: Any) -> Any:
        inner = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return cst.UnaryOperation(operator=cst.Not(), expression=inner)

    def drop_operand(node: Any) -> Iterator[Any]:
        yield node.left.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.right.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    def delete_statement(node: Any) -> Iterator[Any]:
        if not isinstance(node.value, (cst.SimpleString, cst.ConcatenatedString, cst.Yield)):
            yield cst.Expr(cst.Ellipsis())

    def swap_extremes(node: Any) -> Iterator[Any]:
        other = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}
        name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        if isinstance(name, cst.Name) and name.value in other:
            yield node.with_deep_changes(name, value=other[name.value])

    def swap_arguments(node: Any) -> Iterator[Any]:
        plain = [arg for arg in node.args if arg.keyword is None and not arg.star]
        symmetric = m.matches(node.func, m.Name("min") | m.Name("max") | m.Name("isinstance"))
        if len(plain) > 1 and not symmetric:
            first, second, *others = node.args
            swapped = [first.with_changes(value=second.value), second.with_changes(value=first.value), *others]
            yield node.with_changes(args=swapped)

    def drop_replaced_field(node: Any) -> Iterator[Any]:
        if m.matches(node.func, m.Name("replace")):
            for at, arg in enumerate(node.args):
                if arg.keyword is not None:
                    yield node.with_changes(args=[*node.args[:at], *node.args[at + 1 :]])

    return [
        (cst.BaseNumber, mutators.operator_number),
        (cst.Name, mutators.operator_name),
        (cst.AugAssign, mutators.operator_augmented_assignment),
        (cst.UnaryOperation, mutators.operator_remove_unary_ops),
        (cst.CSTNode, mutators.operator_keywords),
        (cst.CSTNode, mutators.operator_swap_op),
        (cst.IfExp, mutators.operator_if_exp),
        (cst.If, negate_condition),
        (cst.BooleanOperation, drop_operand),
        (cst.Expr, delete_statement),
        (cst.Call, swap_extremes),
        (cst.Call, swap_arguments),
        (cst.Call, drop_replaced_field),
    ]


def install(seed: int, most: int | None) -> None:
    """Give mutmut our settings, kinds of change and choice of tests."""
    from mutmut import configuration

    configuration._config_reader = lambda: SETTINGS.get
    import libcst as cst
    from mutmut.mutation import file_mutation
    from mutmut.runners import harness
    from mutmut.state import state
    from mutmut.utils.file_utils import change_cwd
    from mutmut.workers import isolation

    file_mutation.mutation_operators = money_operators()
    inherited = file_mutation.MutationVisitor._skip_node_and_children

    def skip(self: Any, node: Any) -> bool:
        return isinstance(node, cst.FormattedString) or inherited(self, node)

    file_mutation.MutationVisitor._skip_node_and_children = skip
    all_mutations = file_mutation.create_mutations

    def sampled(filename: str, *args: Any) -> Any:
        module, mutations, *others = all_mutations(filename, *args)
        if most is not None and len(mutations) > most:
            order = random.Random(seed).sample(range(len(mutations)), len(mutations))
            mutations = [mutations[at] for at in sorted(order[:most])]
        return module, mutations, *others

    file_mutation.create_mutations = sampled

    def run_tests(self: Any, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        seconds = state().duration_by_test
        chosen, total_s = list[str](), 0.0
        for test in sorted(tests, key=lambda test: (seconds.get(test, 0.0), test)):
            total_s += seconds.get(test, 0.0)
            if chosen and total_s > TEST_S_MAX:
                break
            chosen.append(test)
        with change_cwd("mutants"):
            # Most mutants die in the first tests; it takes longer to collect the others than to run these.
            for part in (chosen[:FIRST_TESTS], chosen[FIRST_TESTS:]) if chosen else (list(TESTS[:1]),):
                code = self.execute_pytest(["-x", "-q", *part]) if part else 0
                if code != 0:
                    return int(code)
        return 0

    harness.PytestRunner.run_tests = run_tests
    # All tests passed when it was recorded what they reach; a second run would take as long as many mutants.
    isolation.ForkRunner.run_clean_tests = lambda self, tests: 0


def copy_checkout() -> None:
    """Bring the working copy up to date; unchanged files keep their time, so that their results stay valid."""
    WORK.mkdir(parents=True, exist_ok=True)
    for name in ("hcloud", *COPIED):
        for source in [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                target = WORK / source.relative_to(ROOT)
                if not target.exists() or target.read_bytes() != source.read_bytes():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, target)
        if (ROOT / name).is_dir():
            for copy in sorted((WORK / name).rglob("*.py")):
                if not (ROOT / copy.relative_to(WORK)).exists():
                    copy.unlink()
                    (WORK / "mutants" / copy.relative_to(WORK)).unlink(missing_ok=True)


def report(show: bool) -> None:
    """Print the kill rate of each module, and each survivor as a diff."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.file_utils import walk_mutatable_files

    equivalent = {
        (each["function"], each["old"], each["new"])
        for each in (yaml.safe_load(EQUIVALENT.read_text()) or [] if EQUIVALENT.exists() else [])
    }
    rows, seen = [], set()
    for path in sorted(walk_mutatable_files()):
        counts: dict[str, int] = defaultdict(int)
        survivors = []
        meta = Path("mutants") / f"{path}.meta"
        results = json.loads(meta.read_text())["exit_code_by_key"] if meta.exists() else {}
        for name, code in results.items():
            status = status_by_exit_code[code]
            if status in ("survived", "no tests"):
                diff = get_diff_for_mutant(name, path=path).splitlines()[2:]
                old = " ".join(line[1:].strip() for line in diff if line.startswith("-"))
                new = " ".join(line[1:].strip() for line in diff if line.startswith("+"))
                key = (_function(name), old, new)
                if key in equivalent:
                    seen.add(key)
                    status = "equivalent"
                else:
                    survivors.append((name, status, old, new))
            counts["killed" if status in ("timeout", "segfault") else status] += 1
        if not results:
            continue
        judged = counts["killed"] + len(survivors)
        rows.append((str(path), len(results), counts["killed"], len(survivors), counts["equivalent"], judged, counts))
        if show:
            for name, status, old, new in survivors:
                print(f"{name.rpartition('.')[2]} ({status})\n  - {old}\n  + {new}")
    print(f"{'module':<52}{'mutants':>8}{'killed':>8}{'alive':>7}{'equal':>7}{'rate':>8}")
    for path, total, killed, alive, equal, judged, counts in rows:
        rate = f"{100 * killed / judged:.1f} %" if judged else "-"
        other = {k: v for k, v in counts.items() if k not in ("killed", "survived", "no tests", "equivalent")}
        print(f"{path:<52}{total:>8}{killed:>8}{alive:>7}{equal:>7}{rate:>8}", other or "")
    killed, judged = sum(row[2] for row in rows), sum(row[5] for row in rows)
    print(f"together: {killed} of {judged} killed, {100 * killed / max(judged, 1):.1f} %")
    for key in sorted(equivalent - seen):
        print("no longer a survivor, remove from scripts/equivalent_mutants.yaml:", *key, sep="\n  ")


def _function(mutant: str) -> str:
    from mutmut.utils.format_utils import mangled_name_from_mutant_name

    name = mangled_name_from_mutant_name(mutant).rpartition(".")[2]
    return name.removeprefix("x_").replace("xǁ", "").replace("ǁ", ".")


def main() -> None:
    """Run mutmut over the chosen modules and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="part of a module's path, such as budget; all if none")
    parser.add_argument(
        "--most", type=int, help="at most this many mutants per module, chosen by --seed; all if absent"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--survivors", action="store_true", help="try again only the mutants that survived")
    parser.add_argument("--report", action="store_true", help="print the last results; run nothing")
    options = parser.parse_args()
    copy_checkout()
    os.chdir(WORK)
    install(options.seed, options.most)
    from mutmut import __main__ as mutmut
    from mutmut.utils.file_utils import walk_mutatable_files

    if not options.report:
        names = list[str]()
        for path in walk_mutatable_files():
            if any(part in str(path) for part in options.modules or [""]):
                names += _names(path, options.survivors)
        mutmut._run(names if options.modules or options.survivors else [], options.processes)
    report(show=True)


def _names(path: Path, survivors: bool) -> list[str]:
    if not survivors:
        return [".".join(path.with_suffix("").parts) + ".*"]
    meta = Path("mutants") / f"{path}.meta"
    results = json.loads(meta.read_text())["exit_code_by_key"] if meta.exists() else {}
    return [name for name, code in results.items() if code in (0, 33, 5, None)]


if __name__ == "__main__":
    sys.exit(main())
