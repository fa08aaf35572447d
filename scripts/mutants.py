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
SLOW = {"properties", "known_properties", "provisioning_properties", "room_reservation", "profiling", "correction"}
SLOW |= {"least_loss", "plan_without_failing", "recheck_queue"}
PLANNER = tuple(
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "tests" / "planner").glob("test_*.py"))
    if path.stem.removeprefix("test_") not in SLOW
)
"""The fast files of ``tests/planner``: together a few seconds."""


def _planner(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/planner/test_{name}.py" for name in names)


MARKET = _planner(
    "buying",
    "enough",
    "strategies",
    "instance_lifecycle",
    "quota_limits",
    "upsizing",
    "commitments",
    "demands",
    "costly_to_keep",
    "expensive_room_holdback",
    "placement_orders",
    "paragon",
    "spot_loss_limit",
    "joint_sizing",
    "directives",
    "explain_choice",
)
"""The fast files of ``tests/planner`` about what is launched."""

MODULES = {
    "hcloud/core/commitments.py": ("tests/core/test_commitments.py", "tests/apply/test_commitment_terms.py"),
    "hcloud/planner/budget.py": PLANNER,
    "hcloud/planner/market.py": MARKET,
    "hcloud/planner/offer_ranking.py": MARKET,
    "hcloud/planner/offer_refusals.py": MARKET,
    "hcloud/planner/quota_limits.py": _planner("quota_limits"),
    "hcloud/planner/spot_preemption.py": PLANNER,
    "hcloud/planner/provisioning/commitments.py": PLANNER,
    "hcloud/planner/provisioning/surplus_ranks.py": _planner("optional_ranks"),
    "hcloud/planner/provisioning/eviction.py": _planner(
        "eviction", "jobs", "optional_ranks", "placement_orders", "instance_lifecycle"
    ),
    "hcloud/planner/placement/holdback.py": _planner(
        "costly_to_keep", "expensive_room_holdback", "noisy_job_holdback", "failing_service_holdback", "enough"
    ),
    "hcloud/planner/provisioning/provision.py": PLANNER,
    "hcloud/planner/provisioning/mapping.py": _planner("strategies", "noisy_job_holdback", "commitments", "buying"),
    "hcloud/planner/provisioning/offer_rules.py": _planner("strategies", "buying"),
    "hcloud/planner/provisioning/strategies.py": _planner("strategies", "commitments", "buying"),
    "hcloud/planner/provisioning/upsizing.py": _planner("upsizing", "buying", "demands"),
    "hcloud/spend_ledger.py": ("tests/apply/test_spend.py", "tests/report/test_parts_sum_up.py"),
    "hcloud/apply/machines.py": tuple(
        f"tests/apply/test_{name}.py" for name in ("machine_actions", "commitment_terms", "launching")
    ),
}
"""The code that spends money, and the fast test files for each module."""
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
SETTINGS: dict[str, Any] = {
    "source_paths": ["hcloud"],
    "also_copy": list(COPIED),
    "do_not_mutate_patterns": list(TEXT_PATTERNS),
    "pytest_add_cli_args": ["-p", "no:xdist", "-p", "no:cacheprovider", "--no-header", "-W", "ignore"],
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
        symmetric |= m.matches(node.func, m.Attribute(attr=m.Name("minimum") | m.Name("maximum")))
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
    import libcst.matchers as m
    from mutmut.mutation import file_mutation
    from mutmut.runners import harness
    from mutmut.state import state
    from mutmut.utils.file_utils import change_cwd
    from mutmut.workers import isolation

    file_mutation.mutation_operators = money_operators()
    inherited = file_mutation.MutationVisitor._skip_node_and_children

    def skip(self: Any, node: Any) -> bool:
        check = isinstance(node, cst.Arg) and m.matches(node, m.Arg(keyword=m.Name("strict")))
        return check or isinstance(node, cst.FormattedString) or inherited(self, node)

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
            for part in (
                (chosen[:FIRST_TESTS], chosen[FIRST_TESTS:])
                if chosen
                else (SETTINGS["pytest_add_cli_args_test_selection"],)
            ):
                code = self.execute_pytest(["-x", "-q", *part]) if part else 0
                if code != 0:
                    return int(code)
        return 0

    harness.PytestRunner.run_tests = run_tests
    # All tests passed when it was recorded what they reach; a second run would take as long as many mutants.
    isolation.ForkRunner.run_clean_tests = lambda self, tests: 0


def copy_checkout(work: Path) -> None:
    """Bring a working copy up to date; unchanged files keep their time, so that their results stay valid."""
    for name in ("hcloud", *COPIED):
        for source in [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                target = work / source.relative_to(ROOT)
                if not target.exists() or target.read_bytes() != source.read_bytes():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, target)
        for copy in sorted((work / name).rglob("*.py")):
            if not (ROOT / copy.relative_to(work)).exists():
                copy.unlink()
                (work / "mutants" / copy.relative_to(work)).unlink(missing_ok=True)


def test_module(module: str, options: argparse.Namespace) -> None:
    """Run mutmut over one module, in a working copy of its own, as a process of its own."""
    work = WORK / module.replace("/", ".")
    if options.fresh:
        shutil.rmtree(work, ignore_errors=True)
    if not options.report:
        copy_checkout(work)
    elif not work.exists():
        return
    SETTINGS.update(only_mutate=[module], pytest_add_cli_args_test_selection=list(MODULES[module]))
    os.chdir(work)
    install(options.seed, options.most)
    if not options.report:
        from mutmut import __main__ as mutmut

        names = [name for name, code in _results(module).items() if code in (0, 5, 33)] if options.survivors else []
        if names or not options.survivors:
            mutmut._run(names, options.processes)
    report(module)


def _results(module: str) -> dict[str, int | None]:
    meta = Path("mutants") / f"{module}.meta"
    return dict(json.loads(meta.read_text())["exit_code_by_key"]) if meta.exists() else {}


def report(module: str) -> None:
    """Print the survivors of a module as the line before and after, and its kill rate."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    equivalent = {(each["function"], each["old"], each["new"]) for each in yaml.safe_load(EQUIVALENT.read_text())}
    counts: dict[str, int] = defaultdict(int)
    print()
    for name, code in _results(module).items():
        status = status_by_exit_code[code]
        if status in ("survived", "no tests"):
            diff = get_diff_for_mutant(name, path=Path(module)).splitlines()[2:]
            old = " ".join(line[1:].strip() for line in diff if line.startswith("-"))
            new = " ".join(line[1:].strip() for line in diff if line.startswith("+"))
            if (_function(name), old, new) in equivalent:
                status = "equivalent"
            else:
                print(f"{_function(name)} ({status})\n  - {old}\n  + {new}")
        counts["killed" if status in ("timeout", "segfault") else status] += 1
    killed, alive = counts.pop("killed", 0), counts.pop("survived", 0) + counts.pop("no tests", 0)
    rate = f"{100 * killed / (killed + alive):.1f} % killed" if killed + alive else "nothing judged"
    others = "".join(f", {count} {status}" for status, count in counts.items())
    print(f"{module}: {rate} ({killed} of {killed + alive}{others})", flush=True)


def _function(mutant: str) -> str:
    from mutmut.utils.format_utils import mangled_name_from_mutant_name

    name = mangled_name_from_mutant_name(mutant).rpartition(".")[2]
    return name.removeprefix("x_").replace("xǁ", "").replace("ǁ", ".")


def main() -> None:
    """Run mutmut over the chosen modules and print what survives."""
    parser = argparse.ArgumentParser(description="Change the code that spends money; list what no test notices.")
    parser.add_argument("modules", nargs="*", help="parts of paths of modules, such as budget; all if none")
    parser.add_argument("--most", type=int, help="at most this many mutants per module, by --seed; all if absent")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="mutants tried at once (default: CPUs)")
    parser.add_argument("--survivors", action="store_true", help="try again only the mutants that survived")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results; needed with another sample")
    parser.add_argument("--report", action="store_true", help="print the last results; run nothing")
    options = parser.parse_args()
    for module in MODULES:
        if any(part in module for part in options.modules or [""]):
            child = os.fork()  # mutmut has one configuration per process
            if child == 0:
                test_module(module, options)
                sys.exit()
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
