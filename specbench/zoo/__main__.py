"""`python -m specbench.zoo`: make the tiny models, their tokenizer and the bundled prompts."""

import argparse
import json
from pathlib import Path

TINY = Path(__file__).parent / "tiny"
PROMPTS = Path(__file__).parents[2] / "datasets" / "prompts"
TOKENIZER_SEED, TOKENIZER_DIALOGUES = 7, 30_000
HEADS = ("medusa", "hydra", "eagle", "eagle3")
JOBS = ("prompts", "tokenizer", "target", "sps", *HEADS, "evaluate", "accepted")


def main() -> None:
    """Parse the command line and run one job."""
    parser = argparse.ArgumentParser(prog="python -m specbench.zoo", description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--out", type=Path, help="folder to write (default: the shipped one)")
    parser.add_argument("--work", type=Path, default=Path("zoo-work"), help="checkpoints and logs")
    parser.add_argument("--steps", type=int, help="training steps (default: as shipped)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--num", type=int, default=24, help="evaluated chats per family")
    given = parser.parse_args()
    if given.job == "prompts":
        from specbench.zoo.heldout import write_prompts

        write_prompts(given.out or PROMPTS)
    else:
        _with_torch(given)


def _with_torch(given: argparse.Namespace) -> None:
    import torch

    from specbench.zoo import jobs, models
    from specbench.zoo.evaluate import evaluate
    from specbench.zoo.tokenizer import load_tokenizer, train_tokenizer

    if given.threads:
        torch.set_num_threads(given.threads)
    if given.job == "tokenizer":
        tokenizer = train_tokenizer(TOKENIZER_SEED, TOKENIZER_DIALOGUES)
        tokenizer.save_pretrained(given.out or TINY / "target")
        return
    if given.job == "evaluate":
        print(json.dumps(evaluate(TINY / "target", given.num, TINY / "sps"), indent=1))
        return
    if given.job == "accepted":
        from specbench.zoo.heads.measure import mean_accepted

        print(json.dumps(mean_accepted(TINY, PROMPTS, given.num), indent=1))
        return
    tokenizer = load_tokenizer(TINY / "target")
    work = given.work / given.job
    if given.job in HEADS:
        from specbench.zoo.heads.jobs import train_tiny_head

        target = models.load_model(TINY / "target", given.device)
        out = given.out or TINY / given.job
        train_tiny_head(given.job, target, tokenizer, out, work, given.steps)
        return
    if given.job == "target":
        settings = jobs.with_changes(jobs.TARGET, given.steps, given.device)
        model = jobs.train_target(tokenizer, settings, work)
    else:
        model = jobs.train_sps(
            models.load_model(TINY / "target"),
            tokenizer,
            jobs.with_changes(jobs.SPS_TEXT, given.steps, given.device),
            jobs.with_changes(jobs.SPS_DISTILLED, given.steps, given.device),
            work,
        )
    models.write_model(model.state_dict(), model.config, tokenizer, given.out or TINY / given.job)


if __name__ == "__main__":
    main()
