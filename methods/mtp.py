"""MTP: the prediction layer that a target was trained with extrapolates its final hidden state."""

import copy
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from specbench.engine.drafter import BuildContext, Method, State
from specbench.engine.kv import KVCache
from specbench.engine.layers.operands import Norm
from specbench.engine.layers.torch_attention import attention_kinds
from specbench.engine.layers.weights import weight_bytes
from specbench.engine.method_options import MethodOptions
from specbench.engine.target import Forward, Needs, Target
from specbench.engine.tree import DraftTree, additive
from specbench.engine.weight_files import names_of
from specbench.methods._chain import draft_chain, draw_next
from specbench.methods._features import FeatureDrafter, FeatureModel
from specbench.methods.shared.checkpoint import Checkpoint
from specbench.types import option


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of MTP."""

    num_tokens: int = option(3, "draft tokens per step", min=1)
    weights: str = option("", "the target's own folder or hub id, with its MTP layer")

    def most_nodes(self) -> int:
        return self.num_tokens + 1


class MtpModel(FeatureModel):
    """The decoder layer that a checkpoint has after the target's own layers. It reads pairs.

    The pair at t is eh_proj([norm(embedding of token t + 1) ; norm(final hidden state at t)]).
    The layer's normed output is the next pair's feature. The target's head turns it into logits.
    """

    needs = Needs(hidden=True, all_prompt_positions=True)
    layout = "DeepSeek"

    def __init__(self, context: BuildContext) -> None:
        target = context.target
        config = copy.deepcopy(target.config)
        hidden = config.hidden_size
        num_layers = len(target.layers)
        self._prefix = f"model.layers.{num_layers}."
        checkpoint = Checkpoint("mtp", context, names_of("mtp"), self._prefix)
        self._check(checkpoint, context)
        self._norms = [
            Norm(checkpoint.take(f"{self._prefix}{name}.weight", hidden), config.rms_norm_eps)
            for name in ("enorm", "hnorm", "shared_head.norm")
        ]
        self._project = checkpoint.linear(f"{self._prefix}eh_proj", 2 * hidden, hidden, bias=False)
        self._embedding = self._shared(
            checkpoint, "embed_tokens", target.model.get_input_embeddings()
        )
        self._head = target.model.get_output_embeddings()
        self._shared(checkpoint, "shared_head.head", self._head)
        self._rotary = target.model.base_model.rotary_emb
        self._layer = _layer(checkpoint, self._prefix, target, _one_layer(config))
        self._is_masked = config._attn_implementation != "sdpa"  # sdpa is causal without a mask
        checkpoint.close()
        # If the target is spread over devices, its last layer is not on the embedding's device.
        last_shape = target.cache.shape(num_layers - 1)
        self.cache = KVCache([replace(last_shape, device=target.device)])

    def _check(self, checkpoint: Checkpoint, context: BuildContext) -> None:
        """Refuse targets that do not have exactly one MTP layer, or have unsupported attention."""
        count = checkpoint.config().get("num_nextn_predict_layers")
        if count != 1:
            raise checkpoint.error(f"has num_nextn_predict_layers {count!r}, not 1")
        if next(iter(checkpoint), None) is None:
            raise checkpoint.error(f"has no tensor whose name begins with {self._prefix}")
        target = context.target
        if not hasattr(target.model.base_model, "rotary_emb"):
            raise checkpoint.error("is for a model whose layers share no rotary embedding")
        if any(attention_kinds(target.config).values()):
            raise checkpoint.error("is for a model with attention windows")

    def _shared(self, checkpoint: Checkpoint, name: str, module: nn.Module) -> Tensor:
        """The weight of the target's module. If the checkpoint has a copy, both must be equal."""
        key = f"{self._prefix}{name}.weight"
        weight = module.weight
        assert isinstance(weight, Tensor)
        if key in checkpoint:
            copied = checkpoint.take(key, *weight.shape)
            if not torch.equal(copied, weight):
                raise checkpoint.error(f"has a {key} that is not the target's")
        return weight

    def reserve(self, num_tokens: int) -> bool:
        return self.cache.reserve(num_tokens)

    def prefill(self, features: Tensor, tokens: Tensor) -> None:
        self.read(features, tokens)

    def read(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Append pairs of features [n, hidden] and tokens [n]. Returns the outputs [n, hidden]."""
        start = self.cache.length
        n = tokens.shape[0]
        token_norm, feature_norm, output_norm = self._norms
        embedded = token_norm(embedding(tokens, self._embedding))
        pairs = torch.cat([embedded, feature_norm(features)], -1)  # [n, 2 * hidden]
        inputs = self._project(pairs)[None]
        positions = torch.arange(start, start + n, device=tokens.device)[None]
        mask = None
        if n > 1 and (start or self._is_masked):
            sees = torch.ones(n, n, dtype=torch.bool, device=tokens.device).tril()
            mask = pad(additive(sees, inputs.dtype), (start, 0))[None, None]
        out = self._layer(
            inputs, attention_mask=mask, position_ids=positions, past_key_values=self.cache,
            use_cache=True, position_embeddings=self._rotary(inputs, positions),
        )  # fmt: skip
        self.cache.length = start + n
        outputs = out if isinstance(out, Tensor) else out[0]  # [1, n, hidden]
        return output_norm(outputs[0])

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits [n, vocab] of the token after each output."""
        return self._head(outputs)

    @property
    def num_bytes(self) -> float:
        """Bytes of weights that a pass over one token reads."""
        num_bytes = float(weight_bytes(self._layer, self._project, self._head))
        mlp = cast(Any, self._layer).mlp
        if hasattr(mlp, "experts"):
            share_read = mlp.gate.top_k / mlp.experts.num_experts
            num_bytes -= (1 - share_read) * weight_bytes(mlp.experts)
        return num_bytes


class Mtp(FeatureDrafter[MtpModel]):
    """Drafts a chain with the target's own prediction layer, one pass per token.

    Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2; behaviour checked against
    transformers' MtpModel. As in MtpModel and SGLang, the layer's output after its norm is the next
    feature; vLLM takes the output before the norm.

    Deviation: the layer is used again for each further token. The paper has a layer for each depth,
    but its authors published only the first layer.
    """

    profile = "path"

    def __init__(self, options: Options, context: BuildContext) -> None:
        self._num_tokens = count = options.num_tokens
        super().__init__(MtpModel(context), context, num_scratch=count, depth=count)
        self._prompt_size = lambda _: None  # no graphs, because the layer counts on the host
        self.tree_sizes = (1 + count,)

    def start(self, state: State, prefill: Forward) -> None:
        self.model.cache.reset()
        super().start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        """Draft a chain. The layer reads the missing pairs, then its outputs with draft tokens."""
        model = self.model
        features, tokens = self._unread(state)

        def draw(tokens: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal features
            features = model.read(features, tokens)[-1:]
            return draw_next(model.logits(features), state.sampler)

        tree = draft_chain(tokens, self._num_tokens, draw, state.sampler)
        model.cache.crop(state.num_committed)
        return tree

    def skip(self, state: State) -> None:
        self.model.read(*self._unread(state))

    def _unread(self, state: State) -> tuple[Tensor, Tensor]:
        """Features and tokens of the pairs that the layer has not read, without padding."""
        count = state.num_committed - self.model.cache.length
        path, tokens, _ = self._missing
        return self._captured[0].index_select(0, path[:count]), tokens[:count]

    def bytes_read(self, num_nodes: int) -> float:
        return self._num_tokens * self.model.num_bytes


def _one_layer(config: Any) -> Any:
    """Reduce a config to one layer, of the same kind as the target's last layer."""
    for name in ("layer_types", "mlp_layer_types"):
        if kinds := getattr(config, name, None):
            setattr(config, name, kinds[-1:])
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    config.num_hidden_layers = 1
    return config


def _layer(checkpoint: Checkpoint, prefix: str, target: Target, config: Any) -> nn.Module:
    """The decoder layer, which is of the target's own class and has the tensors under `prefix`.

    In the file, each expert has its own tensors. The class stacks them.
    """
    with torch.device("meta"), checkpoint.config_errors("a decoder layer"):
        layer: nn.Module = type(target.layers[-1])(config, 0)
    float32_modules = tuple(getattr(target.model, "_keep_in_fp32_modules_strict", None) or ())
    is_half = checkpoint.dtype.itemsize < 4
    weights = {}
    for name, parameter in layer.state_dict().items():
        if ".experts." in name:
            weights[name] = _stacked_experts(checkpoint, prefix + name, tuple(parameter.shape))
        else:
            is_float32 = is_half and any(module in name for module in float32_modules)
            dtype = torch.float32 if is_float32 else None
            weights[name] = checkpoint.take(prefix + name, *parameter.shape, dtype=dtype)
    layer.load_state_dict(weights, assign=True)
    return layer.requires_grad_(False).eval()


def _stacked_experts(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
    """Stack the tensors of all experts into the weight `name` [experts, rows, columns]."""
    module, _, weight_name = name.partition(".experts.")
    num_experts, num_rows, num_columns = shape
    joined = ("gate_proj", "up_proj") if weight_name == "gate_up_proj" else (weight_name,)
    stacks = []
    for part_name in joined:
        keys = [f"{module}.experts.{i}.{part_name}.weight" for i in range(num_experts)]
        stacks.append(checkpoint.stack(keys, num_rows // len(joined), num_columns))
    return torch.cat(stacks, 1)


METHOD = Method(
    name="mtp",
    title="MTP",
    summary="the prediction layer that a target was trained with (DeepSeek-V3, GLM-4.5)",
    paper="DeepSeek-AI 2024, DeepSeek-V3 Technical Report",
    options=Options,
    build=Mtp,
    weights="mtp",
    is_default=False,
    colour="#1A5096",
)
