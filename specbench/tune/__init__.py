"""Acceptance of methods on stored answers, and what each of their settings makes of it."""

from specbench.tune.profile import profile as profile
from specbench.tune.replay import oracle as oracle
from specbench.tune.replay import replay as replay
from specbench.tune.replay import replay_counted as replay_counted
from specbench.tune.stored_profile import Profile as Profile
from specbench.tune.stored_profile import read_profile as read_profile
from specbench.tune.trees import best_tree as best_tree
from specbench.tune.walk import Walk as Walk
