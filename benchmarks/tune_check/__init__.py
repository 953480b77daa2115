"""Predict the speedups of settings, measure them on other prompts, and show the differences.

    python -m benchmarks.tune_check OUT [--model M] [--method A,B] [--settings N] [--limit N]
                                    [--minutes N] [--processes 2]

One half of the prompts is profiled. The speedups of at least N settings of all methods are
predicted from this half, and measured on the other half by ordinary runs. Some settings are entered
twice under two names, which gives A/A pairs. The table is made in several processes, each with its
own cost curve and run. Then three settings of each method are measured again, interleaved: the pick
by prediction, the best of the sweep, and the paper's setting.

The error of a speedup has two causes: the measured prompts differ from the profiled ones, and the
cost is wrong. A prediction for the measured prompts themselves has only the second cause. Parts
that OUT already has are not made again.
"""
