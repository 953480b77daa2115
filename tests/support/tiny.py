"""The codec of `tiny`."""

from specbench.models.cards import find_model
from specbench.models.chat import load_codec
from specbench.zoo import TINY

CODEC = load_codec(TINY / "target", find_model("tiny"), "auto")
