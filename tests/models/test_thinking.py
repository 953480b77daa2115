"""Switches of thinking are found by comparing two renderings."""

import hashlib
import json
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.log.model import ThinkingHeader
from specbench.measure.spec import make_spec
from specbench.models.cards import find_model
from specbench.models.chat import ChatCodec, load_codec
from specbench.models.templates import Template
from specbench.types.reply import Reply, split_thinking
from tests.models.making import TURNS
from tests.support.checkpoint import make_tokenizer
from tests.support.refusals import error_with

OPEN = "<think>\n"


def codec_of(jinja: str, path: Path, name: str = "auto", args: str = "") -> ChatCodec:
    make_tokenizer(chat_template=TURNS + jinja).save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return load_codec(path, find_model(str(path)), name, args)


def end_of_prompt(codec: ChatCodec) -> str:
    ids = codec.render([{"role": "user", "content": "Hi"}])
    return str(codec.tokenizer.decode(ids)).rpartition("Hi")[2]


SWITCHES = [
    ("{% if enable_thinking %}" + OPEN + "{% endif %}", "", OPEN, "enable_thinking", False),
    (
        "{% if thinking is not defined or thinking %}" + OPEN + "{% endif %}",
        "",
        OPEN,
        "thinking",
        False,
    ),
    (
        "{% if not thinking is defined %}{% set thinking = true %}{% endif %}{{ thinking }}",
        "False",
        "True",
        "thinking",
        False,
    ),
    ("{% if thinking_mode == 'on' %}" + OPEN + "{% endif %}", "", OPEN, "thinking_mode", "off"),
    ("{% if thinking_mode != 'chat' %}" + OPEN + "{% endif %}", "", OPEN, "thinking_mode", "chat"),
    ("{% if thinking_mode %}" + OPEN + "{% endif %}", "", OPEN, "thinking_mode", False),
    ("{{ model_effort }}", "low", "medium", "model_effort", "low"),
    ("{{ {'low': 'a', 'high': 'b'}[think_effort] + '' }}", "a", "b", "think_effort", "low"),
]


@pytest.mark.parametrize(("jinja", "off", "on", "switch", "value"), SWITCHES)
def test_a_switch_that_changes_the_prompt_is_switched(
    jinja: str, off: str, on: str, switch: str, value: object, tmp_path: Path
) -> None:
    auto = codec_of(jinja, tmp_path)
    assert end_of_prompt(auto) == off
    is_on = value == "low"  # with a low effort a model thinks, too
    assert auto.describe().thinking == ThinkingHeader("switched", is_on, {switch: value})
    thinking = codec_of(jinja, tmp_path, "thinking")
    assert end_of_prompt(thinking) == on
    mode = thinking.describe().thinking
    assert mode is not None and mode.is_on
    assert thinking.template.sha256 != auto.template.sha256
    assert auto.template.warning is None


@pytest.mark.parametrize("end", ["", OPEN])
@pytest.mark.parametrize(
    "named",
    ["{# enable_thinking #}", "{# thinking_mode: on, off #}", "{% if thinking %}{% endif %}"],
)
def test_a_switch_that_changes_nothing_leaves_the_mode_unknown(
    named: str, end: str, tmp_path: Path
) -> None:
    codec = codec_of(named + end, tmp_path)
    mode = codec.describe().thinking
    assert mode is not None
    assert (mode.state, mode.is_on) == ("unknown", True if end else None)
    assert "mode unknown" in str(codec.template.warning)
    with pytest.raises(UserError, match="no value of it changes a prompt"):
        codec_of(named + end, tmp_path, "thinking")


def test_without_a_switch_an_open_mark_says_that_the_model_thinks(tmp_path: Path) -> None:
    for mark in (OPEN, "[THINK]", "<seed:think>", "◁think▷"):
        codec = codec_of(f"[assistant]{mark}", tmp_path)
        assert codec.describe().thinking == ThinkingHeader("fixed", is_on=True)
        assert codec.template.warning is None
        asked = codec_of(f"[assistant]{mark}", tmp_path, "thinking")
        assert asked.describe().thinking == ThinkingHeader("fixed", is_on=True)


@pytest.mark.parametrize(
    "jinja",
    [
        "[assistant]",
        "[assistant]<think>\n\n</think>\n\n",
        "{# its thinking is dropped #}{{ raise_exception('no thinking') if not messages }}",
        "{{ messages[0].thinking }}{{ messages[0]['thinking'] }}{{ 'thinking' in messages[0] }}",
    ],
)
def test_without_a_switch_and_an_open_mark_the_mode_is_unknown(jinja: str, tmp_path: Path) -> None:
    assert codec_of(jinja, tmp_path).describe().thinking is None
    with pytest.raises(UserError, match="has no thinking mode"):
        codec_of(jinja, tmp_path, "thinking")


REFUSING = (
    "{% if work_effort not in ['fast', 'deep'] %}{{ raise_exception('fast or deep') }}{% endif %}"
    "{{ work_effort }}"
)


def test_a_refusal_names_the_values_and_the_option(tmp_path: Path) -> None:
    with error_with(
        UserError,
        "fast or deep. It was given no values",
        hint="""--template-args '{"work_effort": "low"}'""",
    ):
        codec_of(REFUSING, tmp_path)
    refusing = REFUSING.replace("work_effort", "reasoning_effort")
    with error_with(
        UserError, match=r'deep\. It was given {"reasoning_effort": "low"}', hint="--template-args"
    ):
        codec_of(refusing, tmp_path)
    needing = "{{ raise_exception('no tone') if not tone }}{{ tone }}"
    with error_with(
        UserError, "no tone. It was given no values", hint="If it needs values: --template-args"
    ):
        codec_of(needing, tmp_path)
    assert end_of_prompt(codec_of(needing, tmp_path, args='{"tone": "kind"}')) == "kind"
    codec = codec_of(REFUSING, tmp_path, args='{"work_effort": "deep"}')
    assert end_of_prompt(codec) == "deep"
    assert codec.describe().thinking == ThinkingHeader("switched", True, {"work_effort": "deep"})


def test_template_args_reach_the_template_and_its_hash(tmp_path: Path) -> None:
    jinja = "{{ style | default('') }}{% if enable_thinking %}" + OPEN + "{% endif %}"
    plain = codec_of(jinja, tmp_path)
    styled = codec_of(jinja, tmp_path, args='{"style": "short"}')
    thinking = codec_of(jinja, tmp_path, args='{"enable_thinking": true}')
    assert [end_of_prompt(codec) for codec in (plain, styled, thinking)] == ["", "short", OPEN]
    assert len({codec.template.sha256 for codec in (plain, styled, thinking)}) == 3
    mode = thinking.describe().thinking
    assert mode is not None and mode.is_on
    with pytest.raises(UserError, match="does not read stile"):
        codec_of(jinja, tmp_path, args='{"stile": "short"}')


def test_values_that_older_versions_passed_leave_the_hash_as_it_was(tmp_path: Path) -> None:
    codec = codec_of("{{ enable_thinking }}{{ reasoning_effort }}", tmp_path)
    assert codec.template.sha256 == Template("tokenizer", codec.template.jinja).sha256
    idle = codec_of("{# thinking_mode #}{% if thinking and my_effort %}{% endif %}", tmp_path)
    plain = hashlib.sha256(f"{idle.template.jinja}\n".encode()).hexdigest()
    assert idle.template.sha256 == plain, "switches without an effect get no value"
    assert str(Template("own", "[{{ enable_thinking }}]").sha256).startswith("352b8d61")


def test_template_args_are_an_object_in_json() -> None:
    assert make_spec(template_args={"thinking": False}).template_args == '{"thinking":false}'
    for wrong in ("thinking", "[1]", "{'thinking': false}"):
        with pytest.raises(UserError, match="is not an object in JSON"):
            make_spec(template_args=wrong)


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("<think>a</think>b", Reply("b", "a")),
        ("\n<think>\na\n</think>\n\nb\n", Reply("\nb\n".lstrip(), "a")),
        ("a</think> b", Reply(" b", "a")),
        ("<think>a", Reply("", "a")),
        ("<think>a</think>b<think>c</think>d", Reply("bd", "a\nc")),
        ("[THINK]a[/THINK]b", Reply("b", "a")),
        ("<seed:think>a</seed:think>b", Reply("b", "a")),
        ("Write <think>a</think> like this.", None),
        ("thinking", None),
        ("", None),
    ],
)
def test_an_answer_that_begins_with_reasoning_has_two_parts(text: str, reply: Reply) -> None:
    assert split_thinking(text) == reply
