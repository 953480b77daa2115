"""Make the tiny models' tokenizer: byte-level BPE on the generated text, with a chat template.

A turn is `<|user|>request<|assistant|>answer</s>`, and a chat starts with one `<s>`. As in other
chat models, the template writes the `<s>` of a chat, and the post-processor adds one to plain text.
Rendered text is encoded with `add_special_tokens=False`. Otherwise it would start with two.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from specbench.zoo import TINY
from tools.zoo.text import Dialogue, stream

VOCAB_SIZE = 2048
UNK, BOS, EOS, USER, ASSISTANT = "<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>"
BOS_ID, EOS_ID, USER_ID, ASSISTANT_ID = 1, 2, 3, 4


def train_tokenizer(seed: int, num_dialogues: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on the first dialogues of the stream with this seed."""
    core = Tokenizer(models.BPE(unk_token=UNK))
    parts = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)
    core.pre_tokenizer = pre_tokenizers.Sequence([*parts])
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[UNK, BOS, EOS, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_texts(seed, num_dialogues), trainer)
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token=UNK,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        extra_special_tokens=[USER, ASSISTANT],
        chat_template=(TINY / "target" / "chat_template.jinja").read_text("utf-8"),
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer that is saved in a model folder."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    # save_pretrained would store these, too, but they only say how the tokenizer was loaded.
    for key in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(key, None)
    return tokenizer


def encode_dialogue(core: Tokenizer, dialogue: Dialogue) -> tuple[list[int], list[bool]]:
    """Return the token ids of a chat, and which of them belong to an answer or its EOS."""
    ids, is_answer = [BOS_ID], [False]
    for turn in dialogue.turns:
        user = core.encode(turn.user, add_special_tokens=False).ids
        answer = core.encode(turn.assistant, add_special_tokens=False).ids
        ids += [USER_ID, *user, ASSISTANT_ID, *answer, EOS_ID]
        is_answer += [False] * (len(user) + 2) + [True] * (len(answer) + 1)
    return ids, is_answer


def _texts(seed: int, num_dialogues: int) -> Iterator[str]:
    for dialogue in islice(stream(seed), num_dialogues):
        for turn in dialogue.turns:
            yield turn.user
            yield turn.assistant
