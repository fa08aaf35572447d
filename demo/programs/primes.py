"""CPU-bound: count the primes up to a number by a segmented sieve, and compare with a known count.

Usage: primes.py MILLIONS ROUNDS
"""

import sys

from run_log import begin, progress

KNOWN = {1: 78498, 2: 148933, 5: 348513, 10: 664579}
SEGMENT = 1 << 17


def small_primes(limit: int) -> list[int]:
    """Primes below the square root of the limit."""
    top = int(limit**0.5) + 1
    sieve = bytearray([1]) * (top + 1)
    for number in range(2, int(top**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, top + 1, number)))
    return [number for number in range(2, top + 1) if sieve[number]]


def count_primes(limit: int) -> int:
    """Number of primes up to the limit, one segment that fits a cache at a time."""
    primes, count = small_primes(limit), 0
    for low in range(2, limit + 1, SEGMENT):
        high = min(low + SEGMENT, limit + 1)
        segment = bytearray([1]) * (high - low)
        for prime in primes:
            start = max(prime * prime, -(-low // prime) * prime) - low
            if start < len(segment):
                segment[start::prime] = bytes(len(range(start, len(segment), prime)))
        count += sum(segment)
    return count


def main() -> None:
    """Count again and again; a wrong count is a failed job."""
    millions, rounds = int(sys.argv[1]), int(sys.argv[2])
    begin("primes")
    for done in range(1, rounds + 1):
        found = count_primes(millions * 1_000_000)
        if found != KNOWN[millions]:
            sys.exit(f"found {found} primes up to {millions} million, but there are {KNOWN[millions]}")
        progress(done / rounds)
    print(f"{found} primes up to {millions} million, counted {rounds} times")


main()
