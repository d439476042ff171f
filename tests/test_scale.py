"""Growth of distinct pairs and the plan of a count, against plain definitions."""

import numpy as np
import pytest
from scipy import sparse

from staircase_lib.language import scale
from staircase_lib.language.counting import bytes_a_position, count_signatures

rng = np.random.default_rng(0)


def test_rarefied_is_the_mean_over_random_parts():
    counts = sparse.csr_array(rng.poisson(1.2, (6, 6)))
    shares = [0.0, 0.3, 0.8, 1.0]
    found = scale.rarefied(counts, shares)
    assert found[0] == 0 and found[-1] == counts.nnz
    for share, expected in zip(shares[1:3], found[1:3], strict=True):
        kept = rng.binomial(counts.data, share, (20_000, counts.nnz)) > 0
        assert abs(kept.sum(1).mean() - expected) < 0.05
    with pytest.raises(ValueError, match=r"numbers in \[0, 1\]"):
        scale.rarefied(counts, [1.5])


def test_the_next_pair_is_new_as_often_as_was_said():
    """Good and Turing's estimate against fresh draws from a known law."""
    p = 1 / np.arange(1, 2001)
    p /= p.sum()
    missing, said = [], []
    for _ in range(200):
        seen = np.bincount(rng.choice(2000, 3000, p=p), minlength=2000)
        missing.append(p[seen == 0].sum())
        said.append(scale.new_share(sparse.csr_array(seen[None])))
    assert abs(np.mean(said) - np.mean(missing)) < 0.003
    assert np.isnan(scale.new_share(sparse.csr_array((2, 2), dtype=np.int64)))


def test_growth_counts_blocks_of_the_corpus():
    ids = rng.integers(1, 30, 4096 + 5)
    found = scale.growth(ids, 30, separator=0, doublings=3, block=256, seed=4)
    assert found["tokens"].tolist() == [512, 1024, 2048, 4096]
    assert found["counted"].tolist() == [n - n // 256 for n in found["tokens"]]
    # The whole has the pairs within blocks, whatever their order
    pairs = {
        (a, b)
        for k in range(16)
        for a, b in zip(ids[k * 256 :][:255], ids[k * 256 + 1 :][:255], strict=True)
    }
    assert found["distinct"].iloc[-1] == len(pairs)
    assert found["distinct"].is_monotonic_increasing
    other = scale.growth(ids, 30, separator=0, doublings=3, block=256, seed=5)
    assert other.iloc[-1].equals(found.iloc[-1]) and not other.iloc[0].equals(found.iloc[0])
    triples = scale.growth(ids, 30, separator=0, doublings=1, block=256, order=1, tokens=[3, 4])
    parts = np.full((16, 257), 0)
    parts[:, :256] = ids[:4096].reshape(16, 256)
    whole = count_signatures(parts.ravel(), 30, 1, [3, 4], separator=0)
    assert triples["distinct"].iloc[-1] == whole.nnz
    with pytest.raises(ValueError, match="expected a corpus of 64 blocks"):
        scale.growth(ids, 30, separator=0, doublings=6, block=256)


def test_fits_recover_the_laws_that_made_the_numbers():
    sizes = 1000 * 2.0 ** np.arange(8)
    power = scale.fit_growth(sizes, 3 * sizes**0.7)
    assert power.exponent == pytest.approx(0.7) and power.bend == 0
    assert power.at(1e9) == pytest.approx(3 * 1e9**0.7)
    assert power.at([1e9, 1e12], most=1e6).tolist() == [1e6, 1e6]
    x = np.log(sizes / sizes[-1])
    bent = scale.fit_growth(sizes, 5000 * np.exp(0.6 * x - 0.03 * x**2), bent=True)
    assert (bent.distinct, bent.exponent, bent.bend) == pytest.approx((5000, 0.6, -0.03))
    # The wrong law is seen in what it says of a size that it has not seen
    beyond = 8 * sizes[-1]
    truth = 5000 * np.exp(0.6 * np.log(8) - 0.03 * np.log(8) ** 2)
    assert bent.at(beyond) == pytest.approx(truth)
    straight = scale.fit_growth(sizes[-4:], 5000 * np.exp(0.6 * x - 0.03 * x**2)[-4:])
    assert straight.at(beyond) > 1.1 * truth
    # Beyond its top a bent law stays where it is
    top = 5000 * np.exp(0.6**2 / (4 * 0.03))
    assert bent.at(1e30) == pytest.approx(top)
    for wrong in (([10], [1]), ([10, 20], [1]), ([10, -20], [1, 1])):
        with pytest.raises(ValueError, match="expected"):
            scale.fit_growth(*wrong)


def test_a_plan_is_arithmetic():
    law = scale.Growth(size=1e6, distinct=1e5, exponent=0.5)
    ask = {"count_rate": 5e7, "encode_rate": 1e6, "memory": 16e9, "disk_rate": 1e9, "cores": 8}
    one = scale.plan(36e9, 2**14, law, **ask)
    assert one.id_bytes == 72e9 and one.read_hours == pytest.approx(72 / 3600)
    assert one.encode_hours == pytest.approx(36e9 / 8e6 / 3600)
    assert one.count_hours == pytest.approx(36e9 / 4e8 / 3600)
    assert one.hours == pytest.approx(one.encode_hours + one.count_hours)
    assert one.result_bytes == pytest.approx(1e5 * 36e3**0.5 * 12)
    in_shard = 16e9 / (8 * bytes_a_position(2**14))
    assert one.shards == pytest.approx(36e9 / in_shard)
    assert one.shard_bytes == pytest.approx(one.shards * 1e5 * (in_shard / 1e6) ** 0.5 * 8)
    ten = scale.plan(36e9, 2**14, law, machines=10, **ask)
    assert ten.hours == pytest.approx(one.hours / 10) and ten.cost(3) == pytest.approx(one.cost(3))
    large = scale.plan(36e9, 151_936, law, **ask)
    assert large.id_bytes == 144e9 and large.result_bytes == pytest.approx(1e5 * 36e3**0.5 * 16)
    full = scale.plan(36e9, 100, law, **ask)
    assert full.result_bytes == 100**2 * 12  # never more than there are pairs
