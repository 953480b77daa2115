"""The sign test of paired numbers: is one side worse more often than the other?"""


def sign_test(num_worse: int, num_better: int) -> float:
    """The p-value of "worse is as likely as better", against "worse is likelier".

    Pairs that are equal count for neither side.
    """
    num_pairs = num_worse + num_better
    if not num_pairs:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(num_worse, num_pairs, 0.5, alternative="greater").pvalue)
