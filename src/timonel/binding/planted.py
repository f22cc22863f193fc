r"""A small Llama whose binding head is known, because its weights were written and not learned.

The positive control of a binding study: one head ties an identity to its item, three others only look as if.

    planted      identity rows read the item if it belongs to them, and the answer depends on it
    unread       the same attention, to a direction that nothing reads: large feature, no effect
    reader_both  identity rows read the item in MATCH and in MISMATCH: effect on S, none on ΔS
    other_edge   the item's second mention, in (c), reads the identity: about 5 % of ΔS, by another edge

`_planted_weights` holds the equations, `_planted_pairs` the balanced design. All names are invented.

The pairs are meant for the letter form without a chat template, read after one BOS:

    stem \n (a) the X (b) the Y (c) either with the item \n\n Reply with one letter. \n I choose letter (

Errors: `InputError` for fewer than 8 items. Source: the construction is ours.

Does NOT show that a method finds heads in a trained model, where binding is weak, spread over many heads and
written in no channel of its own; only that it finds one that is there, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from timonel.binding import _planted_weights as weights
from timonel.binding._planted_pairs import balanced_pairs, fixed_words, invented_words
from timonel.binding.pair import Pair
from timonel.errors import InputError

_MIN_ITEMS = 8
_SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
_CUES = ("(", ".", ":")


@dataclass(frozen=True)
class Planted:
    """A model with a known binding head, and what a study needs to look for it.

    Attributes:
        model: `LlamaForCausalLM` in evaluation mode; 5 layers, 4 query heads, 2 key/value heads.
        tokenizer: one token a word or punctuation mark, offsets right, BOS with the special tokens.
        pairs: six an item; every identity is R as often as U'.
        head: the planted head (layer, query head).
        decoys: `reader_both`, `unread`, `other_edge`, each (layer, query head).
            Under random weights neither `head` nor `decoys` mean anything.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pairs: tuple[Pair, ...]
    head: tuple[int, int]
    decoys: Mapping[str, tuple[int, int]]


def planted_binding(
    seed: int = 0, items: int = 24, dtype: torch.dtype = torch.float32, random_weights: bool = False
) -> Planted:
    """Build the planted model, its tokenizer and its pairs.

    Args:
        seed: of the words, the pairs, the strengths and the noise; the heads' places do not depend on it.
        items: number of items and of identities; six pairs an item.
        dtype: of the weights.
        random_weights: the negative control, the same config and pairs over random weights.

    Returns:
        The model with what is known of it.

    Raises:
        InputError: fewer than 8 items.
    """
    if items < _MIN_ITEMS:
        raise InputError(f"A planted model of {items} items cannot be balanced: ask for at least {_MIN_ITEMS} items.")
    rng = random.Random(seed)
    fixed = fixed_words()
    names = invented_words(rng, 2 * items, taken=set(fixed))
    things, people = names[:items], [name.capitalize() for name in names[items:]]
    vocabulary = {word: i for i, word in enumerate([*_SPECIAL, *fixed, *things, *people])}
    belongs = tuple((i, (i + 1) % items) for i in range(items))
    model = _model(seed, dtype, random_weights, _lexicon(vocabulary, things, people, belongs), len(vocabulary))
    return Planted(
        model=model,
        tokenizer=_tokenizer(vocabulary),
        pairs=tuple(balanced_pairs(rng, things, people, belongs)),
        head=weights.PLANTED,
        decoys={
            "reader_both": weights.READER_BOTH,
            "unread": weights.UNREAD,
            "other_edge": weights.OTHER_EDGE,
        },
    )


def _model(
    seed: int, dtype: torch.dtype, random_weights: bool, lexicon: weights.Lexicon, vocabulary: int
) -> PreTrainedModel:
    """The config, and one of the two sets of weights in it; the global random state stays as it was."""
    layout = weights.Layout(len(lexicon.identities))
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=layout.hidden,
        intermediate_size=64,
        num_hidden_layers=weights.LAYERS,
        num_attention_heads=weights.HEADS,
        num_key_value_heads=weights.KV_HEADS,
        head_dim=layout.head_dim,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": weights.THETA},
        tie_word_embeddings=False,
        bos_token_id=lexicon.bos,
        eos_token_id=lexicon.eos,
        pad_token_id=_SPECIAL.index("<pad>"),
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    state = (
        weights.random_state(shapes, seed) if random_weights else weights.compiled_state(shapes, layout, lexicon, seed)
    )
    model.load_state_dict(state)
    return model.to(dtype).eval()


def _lexicon(
    vocabulary: Mapping[str, int],
    things: list[str],
    people: list[str],
    belongs: tuple[tuple[int, ...], ...],
) -> weights.Lexicon:
    return weights.Lexicon(
        bos=vocabulary["<s>"],
        eos=vocabulary["</s>"],
        letters=(vocabulary["a"], vocabulary["b"], vocabulary["c"]),
        close=vocabulary[")"],
        cues=tuple(vocabulary[mark] for mark in _CUES),
        identities=tuple(vocabulary[word] for word in people),
        items=tuple(vocabulary[word] for word in things),
        belongs=belongs,
    )


def _tokenizer(vocabulary: dict[str, int]) -> PreTrainedTokenizerBase:
    """Words and single punctuation marks; pads on the left, as the last position is what counts."""
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
    )
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        padding_side="left",
    )
    return tokenizer
