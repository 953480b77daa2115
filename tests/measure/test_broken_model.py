"""The answers of a model whose logits are NaN fail, and its run ends like any other."""

from pathlib import Path

from safetensors.torch import load_file, save_file

from specbench.measure.spec import RunSpec
from tests.faults.program import ran
from tests.support.checkpoint import save_checkpoint, write_prompts

NAN = float("nan")


def test_a_run_ends_even_if_no_answer_has_finite_logits(tmp_path: Path) -> None:
    model = save_checkpoint(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][3] = NAN
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    prompts = write_prompts(tmp_path / "prompts.jsonl", ["one two three"])
    spec = RunSpec(
        str(model),
        ("pld",),
        prompts=str(prompts),
        template="none",
        max_new_tokens=4,
        device="cpu",
    )
    run = ran(spec, tmp_path)
    assert run.header.status == "complete"
    assert [record.status for record in run.records] == ["error", "error"]
    assert all("NaN or infinite" in (record.error or "") for record in run.records)
