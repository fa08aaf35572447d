"""Memory-bound: sort numbers spread all over memory, and check their order.

Usage: sort_memory.py THOUSANDS ROUNDS
"""

import itertools
import random
import sys

from run_log import begin, progress


def main() -> None:
    """Sort fresh numbers again and again; two in the wrong order are a failed job."""
    thousands, rounds = int(sys.argv[1]), int(sys.argv[2])
    begin("sort_memory")
    chance = random.Random(11)
    for done in range(1, rounds + 1):
        numbers = [chance.random() for _ in range(thousands * 1000)]
        numbers.sort()
        if any(first > second for first, second in itertools.pairwise(numbers)):
            sys.exit("the numbers are not in order")
        progress(done / rounds)
    print(f"{rounds} times {thousands} thousand numbers sorted")


main()
