"""What is known of a checkpoint before anything is steered: sizes, attention, quantisation, template and BOS.

Everything is read off the loaded modules and the tokenizer's own output, not off names in a config.

Does not show: that any of it works; `examine` tries that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from timonel.errors import InputError
from timonel.models.fingerprint import fingerprint
from timonel.models.geometry import Geometry
from timonel.prompts.render import Chat, has_template, render

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TEXT = "A kimono is a garment from Japan, and a sari is one from India; who may wear which is a matter of taste."


@dataclass(frozen=True, slots=True)
class BosPolicy:
    """Who writes the token that begins a text, and how many stand in front in the end.

    Attributes:
        token: its text; None where the tokenizer has none.
        tokenizer_adds: the tokenizer puts it before a plain text.
        template_has: the chat template writes it in front itself; None without a template.
        plain: how many stand in front of a rendered plain text.
        chat: how many stand in front of a rendered user turn; None without a template.
        problem: what a user should know; empty if all is well.
    """

    token: str | None
    tokenizer_adds: bool
    template_has: bool | None
    plain: int
    chat: int | None
    problem: str = ""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> BosPolicy:
        """Tries it on a text."""
        token = tokenizer.bos_token
        template = has_template(tokenizer)
        if token is None:
            return cls(None, False, False if template else None, 0, 0 if template else None)
        adds = list(tokenizer(_TEXT)["input_ids"])[:1] == [tokenizer.bos_token_id]
        plain = _in_front(render(tokenizer, _TEXT).ids, tokenizer.bos_token_id)
        if not template:
            return cls(token, adds, None, plain, None)
        try:
            prompt = render(tokenizer, _TEXT, chat=Chat.USER_TURN)
        except InputError as error:
            return cls(token, adds, None, plain, None, str(error))
        chat = _in_front(prompt.ids, tokenizer.bos_token_id)
        problem = ""
        if adds and chat == 0:
            problem = f"the tokenizer begins plain texts with {token}, but its chat template writes none"
        return cls(token, adds, prompt.text.startswith(token), plain, chat, problem)

    def __str__(self) -> str:
        if self.token is None:
            return "the tokenizer has none"
        added = "added by the tokenizer" if self.tokenizer_adds else "not added by the tokenizer"
        if self.template_has is None:
            return f"{self.token}, {added}; {self.plain} in front of a plain text"
        written = "written by the template" if self.template_has else "not in front in the template"
        return f"{self.token}, {added}, {written}; {self.plain} in front of a plain text, {self.chat} of a chat prompt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The facts, layer by layer where layers differ.

    Attributes:
        architecture: class of the model.
        parameters: their number.
        layers: number of decoder layers.
        heads, kv_heads, head_dim, group, neurons, windows: one entry a layer; a window is None where there is none.
        hidden: width of the residual stream.
        vocabulary: outputs of the head.
        attention: the attention implementation in use.
        softcap: of attention scores; None without.
        final_softcap: of logits; None without.
        quantisation: class of the quantised linears that interventions meet; None without.
        dtype, device: of the embeddings.
        chat_template: whether the tokenizer has one.
        bos: the BOS policy.
        fingerprint: of weights and tokenizer.
    """

    architecture: str
    parameters: int
    layers: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    head_dim: tuple[int, ...]
    group: tuple[int, ...]
    neurons: tuple[int, ...]
    windows: tuple[int | None, ...]
    hidden: int
    vocabulary: int
    attention: str
    softcap: float | None
    final_softcap: float | None
    quantisation: str | None
    dtype: str
    device: str
    chat_template: bool
    bos: BosPolicy
    fingerprint: str

    @classmethod
    def of(
        cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, geometry: Geometry | None = None
    ) -> Checkpoint:
        """Looks at a model and its tokenizer.

        Raises:
            UnsupportedModel: the model's class is not supported; the sentence says why.
        """
        geometry = geometry or Geometry.of(model)
        attention: Any = model.get_submodule(geometry.layers[0].attention)
        embeddings = model.get_input_embeddings().weight
        return cls(
            architecture=geometry.architecture,
            parameters=int(model.num_parameters()),
            layers=geometry.n_layers,
            heads=tuple(layer.heads for layer in geometry.layers),
            kv_heads=tuple(layer.kv_heads for layer in geometry.layers),
            head_dim=tuple(layer.head_dim for layer in geometry.layers),
            group=tuple(layer.group for layer in geometry.layers),
            neurons=tuple(layer.neurons for layer in geometry.layers),
            windows=tuple(layer.window for layer in geometry.layers),
            hidden=geometry.hidden,
            vocabulary=geometry.vocab,
            attention=attention.config._attn_implementation or "eager",
            softcap=geometry.softcap,
            final_softcap=geometry.final_softcap,
            quantisation=_quantisation(model, geometry),
            dtype=str(embeddings.dtype).removeprefix("torch."),
            device=", ".join(sorted({str(parameter.device) for parameter in model.parameters()})),
            chat_template=has_template(tokenizer),
            bos=BosPolicy.of(tokenizer),
            fingerprint=fingerprint(model, tokenizer),
        )

    def rows(self) -> list[tuple[str, str]]:
        """The facts in words, one a line."""
        quantised = f"{self.quantisation}: hooks work, folding into weights will not" if self.quantisation else "none"
        return [
            ("architecture", f"{self.architecture}, {self.parameters / 1e6:,.0f}M parameters"),
            ("layers", f"{self.layers}, hidden size {self.hidden}, vocabulary {self.vocabulary:,}"),
            ("query / kv heads", f"{_span(self.heads)} / {_span(self.kv_heads)} (group {_span(self.group)})"),
            ("head_dim", _span(self.head_dim)),
            ("neurons a layer", _span(self.neurons)),
            ("attention", self.attention),
            ("soft cap", f"{_or_none(self.softcap)} on scores, {_or_none(self.final_softcap)} on logits"),
            ("windows", _windows(self.windows)),
            ("quantisation", quantised),
            ("dtype, device", f"{self.dtype}, {self.device}"),
            ("chat template", "yes" if self.chat_template else "no"),
            ("BOS", str(self.bos) + (f" ({self.bos.problem})" if self.bos.problem else "")),
            ("fingerprint", self.fingerprint),
        ]


def probe_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Tokens of a plain text for `examine`, as the tokenizer begins one."""
    return render(tokenizer, _TEXT).ids


def _quantisation(model: PreTrainedModel, geometry: Geometry) -> str | None:
    """The class of the first projection that is no plain matrix of floats."""
    for layer in geometry.layers:
        for name in (layer.o_proj, layer.down_proj):
            module: Any = model.get_submodule(name)
            weight = getattr(module, "weight", None)
            if weight is None or not weight.is_floating_point() or weight.shape[-1] != module.in_features:
                return type(module).__name__
    return None


def _in_front(ids: Sequence[int], bos: int | None) -> int:
    return len(list(takewhile(lambda token: token == bos, ids)))


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (layers differ)"


def _or_none(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _windows(windows: Sequence[int | None]) -> str:
    sizes = sorted({window for window in windows if window is not None})
    if not sizes:
        return "none: every layer sees all keys"
    narrow = sum(window is not None for window in windows)
    return f"{narrow} of {len(windows)} layers see {' or '.join(f'{size:,}' for size in sizes)} keys"
