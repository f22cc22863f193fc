"""Where the heads and the neurons of a model live. The only place that knows an architecture's names.

A decoder layer l reads the residual x and adds two terms to it:

    o_proj(concat_h z_h),   z_h = softmax(cap(q_h K_{h // group}^T * scale) + mask) V_{h // group}
    down_proj(act(gate x) * (up x))

Query head h is the slice `[h * head_dim, (h + 1) * head_dim)` of `o_proj`'s input, a neuron is one channel
of `down_proj`'s input. Sizes are read from the modules, layer by layer, and never from the config:
`head_dim` is not hidden / heads in Mistral-Nemo, Qwen3 and Gemma, and layers may differ.

A model is admitted if the class of its attention modules is a row of `ARCHITECTURES`: each row was checked
by hand and is tested on a tiny model. Looking alike is not enough, since what cannot be seen from outside
(a soft cap, a sink, a norm on the queries) would be lost in silence. Adding an architecture is one row and
one tiny model.

Does not show: whether the attention implementation in use can be steered; `steer` checks that as it
attaches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from timonel.errors import InputError, UnsupportedModel
from timonel.models._refuse import refuse
from timonel.models.heads import format_head, parse_head, parse_heads

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Geometry",
    "LayerGeometry",
    "format_head",
    "parse_head",
    "parse_heads",
]


@dataclass(frozen=True)
class Architecture:
    """The names inside one decoder layer of a family of models.

    Attributes:
        family: what people call it.
        act: the activation function's module, inside the MLP.
        fused_qkv: the name of one projection for queries, keys and values; None where `k_proj` is apart.
        window_in_config: the window is the config's and holds for all layers, instead of the module's own.
    """

    family: str
    act: str = "act_fn"
    fused_qkv: str | None = None
    window_in_config: bool = False
    attention: str = "self_attn"
    o_proj: str = "o_proj"
    mlp: str = "mlp"
    down_proj: str = "down_proj"


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaAttention": Architecture("Llama"),
    "MistralAttention": Architecture("Mistral", window_in_config=True),
    "Gemma2Attention": Architecture("Gemma 2"),
    "Gemma3Attention": Architecture("Gemma 3"),
    "Qwen2Attention": Architecture("Qwen 2 / 2.5"),
    "Qwen3Attention": Architecture("Qwen 3"),
    "Phi3Attention": Architecture("Phi 3 / 4", act="activation_fn", fused_qkv="qkv_proj", window_in_config=True),
}


@dataclass(frozen=True)
class LayerGeometry:
    """Sizes and dotted module names of one decoder layer.

    Attributes:
        heads: query heads.
        kv_heads: key/value heads; query head h reads key/value head `h // group`.
        head_dim: channels of a head.
        neurons: input channels of `down_proj`.
        window: a query sees this many keys, itself among them; None where it sees all before it.
        attention: the attention module.
        o_proj: its output projection; heads * head_dim input channels.
        mlp: the MLP.
        down_proj: its output projection.
        act: its activation function, whose output meets `up` before `down_proj`.
        layer: the decoder layer.
    """

    heads: int
    kv_heads: int
    head_dim: int
    neurons: int
    window: int | None
    attention: str
    o_proj: str
    mlp: str
    down_proj: str
    act: str
    layer: str

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Geometry:
    """Where the heads and neurons of a model live; names are dotted, as `model.get_submodule` reads them.

    Attributes:
        architecture: the class of the model, such as `LlamaForCausalLM`.
        hidden: width of the residual stream.
        layers: one entry a decoder layer.
        decoder: the module that owns the decoder layers (the text part of a multimodal wrapper).
        head: the output embedding.
        vocab: its number of outputs.
        softcap: scores become `softcap * tanh(score / softcap)` before the mask; None without.
        final_softcap: the same on the logits.
    """

    architecture: str
    hidden: int
    layers: tuple[LayerGeometry, ...]
    decoder: str
    head: str
    vocab: int
    softcap: float | None
    final_softcap: float | None

    @property
    def n_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @property
    def total_heads(self) -> int:
        """Number of query heads in all layers."""
        return sum(layer.heads for layer in self.layers)

    def check_tokens(self, tokens: Collection[int], whose: str) -> None:
        """Refuses token ids that this model's vocabulary does not have; `whose` begins the message."""
        lowest, highest = min(tokens), max(tokens)
        if lowest < 0 or highest >= self.vocab:
            raise InputError(
                f"{whose} has token {highest}, but this model's vocabulary is 0 to {self.vocab - 1}; "
                "use the model's own tokenizer."
            )

    def check_layer(self, layer: int) -> LayerGeometry:
        """The geometry of a layer, or an InputError with the allowed range."""
        if not 0 <= layer < self.n_layers:
            raise InputError(
                f"layer {layer} does not exist in this {self.architecture}: its layers are 0 to {self.n_layers - 1}"
            )
        return self.layers[layer]

    def check_head(self, layer: int, head: int) -> LayerGeometry:
        """The geometry of a head's layer, or an InputError with the allowed range."""
        geometry = self.check_layer(layer)
        if not 0 <= head < geometry.heads:
            raise InputError(
                f"{format_head(layer, head)} does not exist in this {self.architecture}: "
                f"layer {layer} has query heads 0 to {geometry.heads - 1}"
            )
        return geometry

    def heads(self) -> Iterator[tuple[int, int]]:
        """Every (layer, query head), layer by layer."""
        return ((at, head) for at, layer in enumerate(self.layers) for head in range(layer.heads))

    @classmethod
    def of(cls, model: nn.Module) -> Geometry:
        """Read the geometry of a model.

        Args:
            model: a causal language model of transformers; it is only looked at.

        Raises:
            UnsupportedModel: if the model cannot be handled exactly; says by name what stands in the way.
        """
        refuse(model, {kind: row.family for kind, row in ARCHITECTURES.items()})
        found = [
            (name, module, ARCHITECTURES[type(module).__name__])
            for name, module in model.named_modules()
            if type(module).__name__ in ARCHITECTURES
        ]
        lists = {name.rsplit(".", 2)[0] for name, _, _ in found}
        if len(lists) > 1:
            raise UnsupportedModel(
                f"{type(model).__name__} has {len(lists)} decoders ({', '.join(sorted(lists))}), and it is "
                "not clear which one writes the text; hand in the one to be studied"
            )
        (stack,) = lists
        whole = len(model.get_submodule(stack))  # type: ignore[arg-type]
        if len(found) != whole:
            raise UnsupportedModel(
                f"{type(model).__name__} mixes attention with other layers: {len(found)} of the {whole} "
                f"layers in {stack} have a {type(found[0][1]).__name__}, where all must have it"
            )
        config: Any = found[0][1].config
        head: Any = model.get_output_embeddings()  # type: ignore[operator]
        return cls(
            architecture=type(getattr(model, "_orig_mod", model)).__name__,
            hidden=int(config.hidden_size),
            layers=tuple(_layer(model, name, module, row) for name, module, row in found),
            decoder=stack.rsplit(".", 1)[0] if "." in stack else "",
            head=next(name for name, module in model.named_modules() if module is head),
            vocab=int(head.weight.shape[0]),
            softcap=getattr(config, "attn_logit_softcapping", None),
            final_softcap=getattr(config, "final_logit_softcapping", None),
        )


def _layer(model: nn.Module, attention: str, module: Any, row: Architecture) -> LayerGeometry:
    layer = attention.removesuffix(f".{row.attention}")
    mlp = f"{layer}.{row.mlp}"
    head_dim = int(module.head_dim)
    heads = int(getattr(module, row.o_proj).in_features) // head_dim
    if row.fused_qkv is None:
        kv_heads = int(module.k_proj.out_features) // head_dim
    else:
        kv_heads = (int(getattr(module, row.fused_qkv).out_features) // head_dim - heads) // 2
    window = module.config.sliding_window if row.window_in_config else getattr(module, "sliding_window", None)
    down: Any = model.get_submodule(f"{mlp}.{row.down_proj}")
    return LayerGeometry(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        neurons=int(down.in_features),
        window=None if window is None else int(window),
        attention=attention,
        o_proj=f"{attention}.{row.o_proj}",
        mlp=mlp,
        down_proj=f"{mlp}.{row.down_proj}",
        act=f"{mlp}.{row.act}",
        layer=layer,
    )
