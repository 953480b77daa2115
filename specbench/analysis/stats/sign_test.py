"""Test if one side of pairs is worse more often than the other (sign test)."""


def sign_test(num_worse: int, num_better: int) -> float:
    """Compute the p-value of "worse is as likely as better", against "worse is more likely".

    `num_worse` and `num_better` count pairs; equal pairs are in neither number.
    """
    num_pairs = num_worse + num_better
    if not num_pairs:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(num_worse, num_pairs, 0.5, alternative="greater").pvalue)
