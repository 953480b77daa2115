"""Make the tiny models, their tokenizer and the bundled prompts."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from specbench.training.options import TrainingOptions
from specbench.training.recipe import HEADS
from specbench.zoo import TINY
from tools.zoo.acceptance import write_acceptance
from tools.zoo.evaluate import evaluate
from tools.zoo.heads import OPTIONS, train_tiny_head
from tools.zoo.held_out import write_prompts
from tools.zoo.language_models import SPS_DISTILLED, SPS_TEXT, TARGET, train_sps, train_target
from tools.zoo.models import load_model, write_model
from tools.zoo.tokenizer import load_tokenizer, train_tokenizer

PROMPTS = Path(__file__).parents[2] / "datasets" / "prompts"
TOKENIZER_SEED, TOKENIZER_DIALOGUES = 7, 30_000
JOBS = ("prompts", "tokenizer", "target", "sps", *HEADS, "evaluate", "acceptance")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.zoo", description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--model", default="tiny", help="acceptance: its model (default: tiny)")
    parser.add_argument("--out", type=Path, help="folder to write (default: the shipped one)")
    parser.add_argument("--work", type=Path, default=Path("zoo-work"), help="checkpoints and logs")
    parser.add_argument("--steps", type=int, help="training steps (default: as shipped)")
    parser.add_argument("--device", default="cpu")
    return parser


def main() -> None:
    """Parse the command line and run one job."""
    arguments = parser().parse_args()
    job, out = arguments.job, arguments.out
    if job == "prompts":
        write_prompts(out or PROMPTS)
    elif job == "acceptance":
        write_acceptance(arguments.model, out)
    elif job == "evaluate":
        print(json.dumps(evaluate(), indent=1))
    elif job == "tokenizer":
        tokenizer = train_tokenizer(TOKENIZER_SEED, TOKENIZER_DIALOGUES)
        tokenizer.save_pretrained(out or TINY / "target")
    else:
        _train(arguments, out or TINY / job, arguments.work / job)


def _train(arguments: argparse.Namespace, out: Path, work: Path) -> None:
    job, device, tokenizer = arguments.job, arguments.device, load_tokenizer(TINY / "target")

    def changed(options: TrainingOptions) -> TrainingOptions:
        return replace(options, num_steps=arguments.steps or options.num_steps)

    if job == "target":
        model = train_target(tokenizer, changed(TARGET), device, work)
    else:
        target = load_model(TINY / "target", device)
        if job in HEADS:
            train_tiny_head(job, target, tokenizer, changed(OPTIONS[job]), out, work)
            return
        model = train_sps(target, tokenizer, changed(SPS_TEXT), changed(SPS_DISTILLED), work)
    write_model(model, tokenizer, out)


if __name__ == "__main__":
    main()
