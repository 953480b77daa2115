"""Make the tiny models, their tokenizer and the bundled prompts."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from specbench.zoo import TINY

PROMPTS = Path(__file__).parents[2] / "datasets" / "prompts"
TOKENIZER_SEED, TOKENIZER_DIALOGUES = 7, 30_000
HEADS = ("medusa", "hydra", "eagle", "eagle3")
JOBS = ("prompts", "tokenizer", "target", "sps", *HEADS, "evaluate", "acceptance")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.zoo", description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--model", default="tiny", help="whose acceptance (default: tiny)")
    parser.add_argument("--out", type=Path, help="folder to write (default: the shipped one)")
    parser.add_argument("--work", type=Path, default=Path("zoo-work"), help="checkpoints and logs")
    parser.add_argument("--steps", type=int, help="training steps (default: as shipped)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--num", type=int, default=24, help="evaluated chats per family")
    return parser


def main() -> None:
    """Parse the command line and run one job."""
    arguments = parser().parse_args()
    if arguments.job == "prompts":
        from tools.zoo.held_out import write_prompts

        write_prompts(arguments.out or PROMPTS)
        return
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.job == "acceptance":
        from tools.zoo.acceptance import write_acceptance

        write_acceptance(arguments.model, arguments.out)
    elif arguments.job == "evaluate":
        from tools.zoo.evaluate import evaluate

        print(json.dumps(evaluate(TINY / "target", arguments.num), indent=1))
    elif arguments.job == "tokenizer":
        from tools.zoo.tokenizer import train_tokenizer

        tokenizer = train_tokenizer(TOKENIZER_SEED, TOKENIZER_DIALOGUES)
        tokenizer.save_pretrained(arguments.out or TINY / "target")
    else:
        out = arguments.out or TINY / arguments.job
        _train(arguments, out, arguments.work / arguments.job)


def _train(arguments: argparse.Namespace, out: Path, work: Path) -> None:
    from specbench.training.recipe import Settings
    from tools.zoo import heads, language_models
    from tools.zoo.models import load_model, write_model
    from tools.zoo.tokenizer import load_tokenizer

    job, device, tokenizer = arguments.job, arguments.device, load_tokenizer(TINY / "target")

    def changed(settings: Settings) -> Settings:
        return replace(settings, num_steps=arguments.steps or settings.num_steps)

    if job == "target":
        settings = changed(language_models.TARGET)
        model = language_models.train_target(tokenizer, settings, device, work)
    else:
        target = load_model(TINY / "target", device)
        if job in HEADS:
            settings = changed(heads.SETTINGS[job])
            heads.train_tiny_head(job, target, tokenizer, settings, out, work)
            return
        on_text, distilled = map(changed, (language_models.SPS_TEXT, language_models.SPS_DISTILLED))
        model = language_models.train_sps(target, tokenizer, on_text, distilled, work)
    write_model(model, tokenizer, out)


if __name__ == "__main__":
    main()
