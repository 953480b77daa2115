"""The fastest settings of methods on a machine: acceptance profile times cost curve, measured."""

from specbench.tune.cost import Curve, cost, curve_frame, read_curve
from specbench.tune.predict import Prediction, predict, prediction_frame
from specbench.tune.profile import Profile, profile, read_profile
from specbench.tune.replay import Walk, best_tree, mat, oracle, profile_frame, replay
from specbench.tune.tuner import Choice, tune

__all__ = ["Profile", "Walk", "best_tree", "mat", "oracle", "profile", "profile_frame"]
__all__ += ["Curve", "cost", "curve_frame", "read_curve", "read_profile", "replay"]
__all__ += ["Choice", "Prediction", "predict", "prediction_frame", "tune"]
