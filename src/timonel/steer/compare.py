"""One prompt, written on twice: by the model as it is, and under a plan.

    baseline = generate(model, prompt)          steered = generate(model with the plan attached, prompt)

Both are written alone, one after the other, so that neither depends on the other as a batch mate; a sampled pair
draws from the same seed, so equal logits give equal texts.

Does not show: an effect. One text, or a handful read by eye, is an illustration; a study with a control measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from timonel.errors import InputError
from timonel.models.geometry import Geometry
from timonel.models.heads import parse_head
from timonel.prompts.markup import find_mark, parse_markup
from timonel.prompts.prompt import Prompt
from timonel.prompts.render import Chat, render
from timonel.steer.attach import attach
from timonel.steer.interventions import ChannelScale
from timonel.steer.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Writing:
    """How text is written.

    Attributes:
        tokens: at most this many new ones.
        sample: draw tokens, instead of taking the likeliest.
        temperature: of drawing.
        seed: of drawing.
    """

    tokens: int = 60
    sample: bool = False
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise InputError(f"--tokens is {self.tokens}, but at least one token is written; give 1 or more.")
        if not 0.0 < self.temperature < float("inf"):
            raise InputError(
                f"--temperature is {self.temperature:g}, but it must be above 0; leave out --sample for 0."
            )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two texts on one prompt.

    Attributes:
        prompt: the text that was read, template included.
        baseline: ids that the plain model wrote; `steered`, under the plan.
        baseline_text, steered_text: the same as text.
    """

    prompt: str
    baseline: tuple[int, ...]
    steered: tuple[int, ...]
    baseline_text: str
    steered_text: str

    @property
    def parted(self) -> int | None:
        """The first new token in which they differ; None where they are the same."""
        if self.baseline == self.steered:
            return None
        pairs = zip(self.baseline, self.steered, strict=False)
        shorter = min(len(self.baseline), len(self.steered))
        return next((at for at, (one, other) in enumerate(pairs) if one != other), shorter)


def prompt_of(
    tokenizer: PreTrainedTokenizerBase, text: str, spans: Sequence[tuple[str, str]] = (), *, chat: bool = False
) -> Prompt:
    """A prompt from a text with marks such as `[[item:Feng Shui]]`, and from further spans.

    Args:
        tokenizer: a fast tokenizer.
        text: the text.
        spans: (name, part): the first place where the part stands in the text.
        chat: wrap it as one user turn.

    Raises:
        InputError: a part stands nowhere in the text (the message shows it), or a mark is malformed.
    """
    plain, marks = parse_markup(text)
    found = [find_mark(name, part, plain) for name, part in spans]
    return render(tokenizer, plain, (*marks, *found), chat=Chat.USER_TURN if chat else Chat.PLAIN)


def parse_span(text: str) -> tuple[str, str]:
    """Reads `item=Feng Shui`.

    Example:
        >>> parse_span("item=Feng Shui")
        ('item', 'Feng Shui')
    """
    name, sign, part = text.partition("=")
    if not (name.strip() and sign and part):
        raise InputError(f"--span is {text!r}, but a name and a part of the prompt are needed; write item='Feng Shui'.")
    return name.strip(), part


def scaled_head(geometry: Geometry, text: str) -> ChannelScale:
    """Reads `L8H2=2.5`: all that the head writes, times 2.5."""
    head, _, number = text.partition("=")
    try:
        alpha = float(number)
    except ValueError:
        raise InputError(f"--head is {text!r}, but a head and its factor are needed; write L8H2=2.5.") from None
    layer, index = parse_head(head)
    return ChannelScale.head(geometry, layer=layer, head=index, alpha=alpha)


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    prompt: Prompt,
    writing: Writing | None = None,
    *,
    geometry: Geometry | None = None,
) -> Comparison:
    """Writes both texts.

    Args:
        model: left as it was.
        tokenizer: its tokenizer.
        plan: what to attach for the second text.
        prompt: what to write on; with the spans that the plan names.
        writing: how; greedily, 60 tokens, by default.
        geometry: of the model, if it is at hand.

    Raises:
        InputError: the plan names a span that the prompt does not have.
        UnsupportedModel: the plan does not work on this model.
    """
    writing = writing or Writing()
    with attach(model, plan, prompts=[prompt], geometry=geometry):
        steered = _write(model, tokenizer, prompt, writing)
    baseline = _write(model, tokenizer, prompt, writing)
    decode: Any = tokenizer.decode
    texts = [str(decode(list(ids), skip_special_tokens=True)) for ids in (baseline, steered)]
    return Comparison(prompt.text, baseline, steered, *texts)


def _write(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: Prompt, writing: Writing
) -> tuple[int, ...]:
    """New tokens; the checkpoint's own top-k, top-p, temperature and repetition penalty are set aside."""
    device = model.get_input_embeddings().weight.device
    ids = torch.tensor([prompt.ids], device=device)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    draw: dict[str, Any] = {"temperature": None, "top_k": None, "top_p": None}
    if writing.sample:
        draw = {"temperature": writing.temperature, "top_k": 0, "top_p": 1.0}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(writing.seed)
        written = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=writing.tokens,
            do_sample=writing.sample,
            num_beams=1,
            repetition_penalty=1.0,
            pad_token_id=pad,
            **draw,
        )
    return tuple(int(token) for token in written[0, ids.shape[1] :])
