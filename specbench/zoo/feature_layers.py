"""The target layers whose inputs are EAGLE-3's features."""

CONFIG_KEY = "eagle_aux_hidden_state_layer_ids"
"""Their name in a head's config.json."""


def feature_layers(num_layers: int) -> tuple[int, ...]:
    """The official choice where that is three different layers, else three others, or all."""
    official = sorted({2, num_layers // 2, num_layers - 3})
    if len(official) == 3 and official[0] >= 0 and official[-1] < num_layers:
        return tuple(official)
    if num_layers < 3:
        return tuple(range(num_layers))
    return tuple(sorted({num_layers // 4, num_layers // 2, num_layers - 1}))
