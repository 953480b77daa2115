"""The fastest settings of methods on a machine: acceptance profile times cost curve, measured."""

from specbench.tune.cost import Curve as Curve
from specbench.tune.cost import cost as cost
from specbench.tune.cost import curve_frame as curve_frame
from specbench.tune.cost import read_curve as read_curve
from specbench.tune.predict import Prediction as Prediction
from specbench.tune.predict import predict as predict
from specbench.tune.predict import prediction_frame as prediction_frame
from specbench.tune.profile import Profile as Profile
from specbench.tune.profile import profile as profile
from specbench.tune.profile import read_profile as read_profile
from specbench.tune.replay import Walk as Walk
from specbench.tune.replay import best_tree as best_tree
from specbench.tune.replay import mat as mat
from specbench.tune.replay import oracle as oracle
from specbench.tune.replay import profile_frame as profile_frame
from specbench.tune.replay import replay as replay
from specbench.tune.tuner import Choice as Choice
from specbench.tune.tuner import tune as tune
