"""Counter-based randomness: every number is a function of (seed, stream, index).

A 64-bit mixing function (the finalizer of SplitMix64; Steele, Lea and Flood 2014) hashes a counter.
Nothing has a state, so the first m of n draws equal a request for m draws, and batch size, thread
count and device change nothing. Streams with different names are independent.
"""

import functools
import hashlib

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from anchor_interp._util.schema import checked

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX1, MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def stream_key(seed: int, stream: str) -> np.uint64:
    """The 64-bit key of a named stream; the seed is 0 to 2^63 - 1."""
    seed = checked(seed, int, "seed", low=0, high=(1 << 63) - 1)
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def hash_counter(key: np.uint64, counter: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """SplitMix64's output for each counter: uniform 64-bit values, one-to-one in the counter."""
    with np.errstate(over="ignore"):
        z = key + (counter + np.uint64(1)) * GOLDEN
        z ^= z >> np.uint64(30)
        z *= MIX1
        z ^= z >> np.uint64(27)
        z *= MIX2
        z ^= z >> np.uint64(31)
    return z


def random_bits(n: int, *, seed: int, stream: str) -> UInt64[np.ndarray, " n"]:
    """N uniform 64-bit values of a stream; no two of them are equal."""
    return hash_counter(stream_key(seed, stream), np.arange(n, dtype=np.uint64))


def random_integers(n: int, bound: int, *, seed: int, stream: str) -> Int64[np.ndarray, " n"]:
    """N uniform integers from 0 to bound - 1 of a stream; the bias is below bound / 2^63."""
    return (random_bits(n, seed=seed, stream=stream) >> np.uint64(1)).astype(np.int64) % bound


def random_choice(
    allowed: Bool[np.ndarray, "n options"], *, seed: int, stream: str
) -> Int64[np.ndarray, " n"]:
    """One allowed option for every row, drawn uniformly; every row must allow one."""
    bits = random_bits(len(allowed), seed=seed, stream=stream)
    return nth_allowed(allowed, below(bits, allowed.sum(1)))


def nth_allowed(
    allowed: Bool[np.ndarray, "n options"], rank: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " n"]:
    """The option of each row that has ``rank`` allowed options before it."""
    chosen: Int64[np.ndarray, " n"] = (allowed.cumsum(1) > rank[:, None]).argmax(1)
    return chosen


def below(
    bits: UInt64[np.ndarray, " n"], bound: int | Int64[np.ndarray, " n"], *, high: bool = True
) -> Int64[np.ndarray, " n"]:
    """Map the high (or low) 32 bits to 0 .. bound - 1; the bias is below bound / 2^32."""
    half = bits >> np.uint64(32) if high else bits & np.uint64(0xFFFFFFFF)
    return (half * np.asarray(bound, np.uint64) >> np.uint64(32)).astype(np.int64)


@functools.lru_cache(maxsize=2)
def epoch_order(n: int, epoch: int, *, seed: int) -> Int64[np.ndarray, " n"]:
    """The order of the n training sequences in an epoch: a read-only permutation."""
    order = np.argsort(epoch_keys(n, epoch, seed=seed))
    order.flags.writeable = False  # the cache returns the same array to every caller
    return order


def epoch_keys(n: int, epoch: int, *, seed: int) -> UInt64[np.ndarray, " n"]:
    """The values by which an epoch sorts its sequences; no two are equal."""
    return hash_counter(epoch_key(epoch, seed=seed), np.arange(n, dtype=np.uint64))


def epoch_key(epoch: int, *, seed: int) -> np.uint64:
    """The key of an epoch's order."""
    return stream_key(seed, f"epoch-{epoch}")


def epoch_parts(start: int, stop: int, n: int) -> list[tuple[int, slice]]:
    """The epochs of n sequences, and the part of each, that hold sequences start to stop of all."""
    epochs = range(start // n, -(-stop // n))
    return [(e, slice(max(start - e * n, 0), min(stop - e * n, n))) for e in epochs]


def batch_indices(step: int, batch_size: int, n: int, *, seed: int) -> Int64[np.ndarray, " batch"]:
    """The training sequences of an optimizer step, a function of (seed, step) alone.

    A batch may end one epoch and begin the next.
    """
    parts = epoch_parts(step * batch_size, (step + 1) * batch_size, n)
    return np.concatenate([epoch_order(n, epoch, seed=seed)[part] for epoch, part in parts])


def shuffled_rows(n: int, size: int, *, seed: int, stream: str) -> Int64[np.ndarray, " n"]:
    """N rows of a set of ``size``: all of it in random order, then all in another, and so on."""
    rounds = range(-(-n // size))
    bits = (random_bits(size, seed=seed, stream=f"{stream}/{number}") for number in rounds)
    orders = [np.empty(0, np.int64), *(one.argsort() for one in bits)]
    return np.concatenate(orders)[:n]
