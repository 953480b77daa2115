"""Find the fastest settings of methods on a machine from an acceptance profile and a cost curve."""

from specbench.settings.cost_curve import Curve, read_curve
from specbench.settings.walk import Walk, mat
from specbench.tune.best_tree import best_tree
from specbench.tune.choice import Choice
from specbench.tune.cost import cost
from specbench.tune.frames import curve_frame, prediction_frame, profile_frame
from specbench.tune.predict import Prediction, predict
from specbench.tune.profile import profile
from specbench.tune.profile_file import Profile
from specbench.tune.profile_reading import read_profile
from specbench.tune.replay import oracle, replay
from specbench.tune.tuner import tune

__all__ = [
    "Choice",
    "Curve",
    "Prediction",
    "Profile",
    "Walk",
    "best_tree",
    "cost",
    "curve_frame",
    "mat",
    "oracle",
    "predict",
    "prediction_frame",
    "profile",
    "profile_frame",
    "read_curve",
    "read_profile",
    "replay",
    "tune",
]
