"""Predict settings' speedups, measure them on other prompts, and show the differences.

    python -m benchmarks.tune_check OUT [--model M] [--method A,B] [--settings N] [--limit N]
                                    [--minutes N] [--processes 2]

One half of the prompts is profiled. At least N settings of all methods are predicted from it and
measured on the other half, by ordinary runs. Some settings are entered twice under two names: the
A/A pairs. The table is made in several processes, each with its own cost curve and run. Then each
method's pick, the best of the sweep and the paper's setting are measured again, interleaved. The
error of a speedup has two parts: the measured prompts differ from the profiled ones, and the cost
is wrong. A prediction for the measured prompts has the second part alone. Parts that OUT has
already are not made again.
"""
