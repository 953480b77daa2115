"""Engines that a run starts: their command, their end, and the processes and files they leave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from specbench.errors import CheckpointError, SpecbenchError, UserError
from specbench.log.backend import Arrangement
from specbench.measure.server import executable, llama_server
from specbench.measure.server import process as process_module
from specbench.measure.server.client import Client
from specbench.measure.server.engine import Launch, load_engine
from specbench.measure.server.engines.llamacpp import gguf_file
from specbench.measure.server.find import find_server
from specbench.measure.server.process import ServerProcess
from specbench.measure.server.started_servers import StartedServers, without_folders
from specbench.measure.server.started_setup import StartedSetup, _device, make_started_setup
from specbench.measure.server.stream import ChatRequest, RequestFailed
from specbench.measure.spec import make_spec
from specbench.models.cards import find_model
from specbench.types import Request
from tests.machine.fake_nvml import FakeNvml
from tests.measure.server.setups import setup_of
from tests.support.backend import Words
from tests.support.ends import are_gone, wait_until
from tests.support.gguf_files import write_gguf
from tests.support.refusals import error_with

FAKE = Path(__file__).parents[2] / "support" / "fake_engine.py"
ASK = ChatRequest(Request((1, 8, 9), 16), [])
SCRATCH: list[Path] = []
"""The scratch folders of the servers that were started."""


def started(folder: Path, *arguments: str, turns: Arrangement | None = None) -> StartedServers:
    """The servers of two methods, run by the fake engine."""

    def command(launch: Launch) -> Sequence[str]:
        assert launch.scratch.is_dir()
        SCRATCH.append(launch.scratch)
        more = ["--speculative-config", '{"method": "ngram"}'] if launch.method == "ngram" else []
        return [sys.executable, str(FAKE), "--port", str(launch.port), *more, *arguments]

    find = partial(find_server, card=find_model("tiny"), codec=Words(), served_model="tiny")
    launches = {method: launch(folder, method) for method in ("vanilla", "ngram")}
    return StartedServers(launches, command, {}, find, folder, request_s=10, arrangement=turns)


def pids(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()]


def test_one_server_runs_at_a_time(tmp_path: Path) -> None:
    children = tmp_path / "children"

    async def use() -> None:
        servers = started(tmp_path, "--children", str(children))
        try:
            first = await servers.open("vanilla")
            assert await servers.open("vanilla") is first
            before = pids(children)
            second = await servers.open("ngram")
            assert are_gone(*before)
            assert (await second.complete(ASK)).counts.accepted_per_step == (2, 1)
            assert servers.describe()["ngram"].software == "vLLM 0.32.0"
            await servers.end_pass()  # the next pass starts without what it remembers
            assert before != pids(children) and are_gone(*pids(children))
        finally:
            await servers.close()

    asyncio.run(use())
    assert "starting ngram" in (tmp_path / "ngram.log").read_text()
    assert not any(folder.exists() for folder in SCRATCH[-2:])


def test_an_engine_that_does_not_start_fails_with_its_last_lines(tmp_path: Path) -> None:
    async def use() -> None:
        servers = started(tmp_path, "--fail", "ngram")
        for _ in range(2):
            with error_with(
                SpecbenchError,
                "ended with status 3 while it st",
                "starting ngram | RuntimeError: no memory left",
            ):
                await servers.open("ngram")
        await servers.close()

    asyncio.run(use())
    assert (tmp_path / "ngram.log").read_text().count("starting") == 1, "it is not started again"


def test_an_engine_that_dies_is_restarted_once(tmp_path: Path) -> None:
    async def use() -> None:
        servers = started(tmp_path, "--die-at", "3")
        for _ in range(2):
            server = await servers.open("vanilla")
            await server.complete(ASK)
            with pytest.raises(RequestFailed):
                await server.complete(ASK)
            death = await server.wait_for_death()
            assert "ended with status 7" in death and "EngineCore died" in death
        with pytest.raises(SpecbenchError, match="died 2 times"):
            await servers.open("vanilla")
        await servers.close()

    asyncio.run(use())


def test_an_engine_that_asks_for_a_key_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def get(self: Client, path: str) -> str:
        raise RequestFailed("HTTP status 401", wants_key=True)

    monkeypatch.setattr(Client, "get", get)
    with pytest.raises(SpecbenchError, match="HTTP status 401"):
        asyncio.run(started(tmp_path).open("vanilla"))


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    process = ServerProcess(["/no/such/engine", "serve"], {}, tmp_path / "log")
    assert wait_until(lambda: bool(process.death()))
    assert "/no/such/engine cannot be started" in process.last_lines()
    process.stop()


FAMILY = "sleep 600 & echo $$ $! > {0}.part; mv {0}.part {0}; wait"
"""A command that starts a child, and writes the process ids of both."""


def test_a_kill_of_this_program_leaves_no_process_behind(tmp_path: Path) -> None:
    children = tmp_path / "children"
    source = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from specbench.measure.server.process import ServerProcess\n"
        "ServerProcess(['sh', '-c', sys.argv[3]], {}, Path(sys.argv[2])); time.sleep(600)"
    )
    given = (Path(process_module.__file__).parents[4], tmp_path / "log", FAMILY.format(children))
    program = subprocess.Popen([sys.executable, "-c", source, *map(str, given)])
    try:
        assert wait_until(children.exists)
        program.send_signal(signal.SIGKILL)
        program.wait()
        assert wait_until(lambda: are_gone(*pids(children)))
    finally:
        program.kill()


def test_children_of_a_killed_engine_are_ended(tmp_path: Path) -> None:
    children = tmp_path / "children"
    process = ServerProcess(["sh", "-c", FAMILY.format(children)], {}, tmp_path / "log")
    assert wait_until(children.exists)
    engine, child = pids(children)
    os.kill(engine, signal.SIGKILL)
    assert wait_until(lambda: bool(process.death()))
    assert wait_until(lambda: are_gone(child))
    process.stop()


def launch(tmp_path: Path, method: str, weights: Path | None = None) -> Launch:
    return Launch(
        model=tmp_path,
        served_name="tiny",
        method=method,
        weights=weights,
        num_tokens=4,
        context=2048,
        num_at_once=8,
        dtype="float32",
        is_cpu=True,
        scope="run",
        port=8123,
        scratch=tmp_path / "scratch",
    )


def flags_of(engine: str, launch: Launch) -> dict[str, str]:
    """Each word of the engine's command line, mapped to the word after it."""
    words = load_engine(engine).arguments(launch)
    return dict(zip(words, [*words[1:], ""], strict=True))


def test_vllm_gets_the_draft_and_no_prefix_cache(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    flags = flags_of("vllm", launch(tmp_path, "sps", draft))
    assert flags["serve"] == str(tmp_path)
    assert {"--no-enable-prefix-caching", "--enforce-eager"} <= {*flags}
    config = flags["--speculative-config"]
    assert config == (
        f'{{"method": "draft_model", "model": "{draft}", "num_speculative_tokens": 4}}'
    )
    plain = flags_of("vllm", launch(tmp_path, "vanilla"))
    metrics = {"--per-request-spec-decode-metrics", "detailed"}
    assert {*flags} - {*plain} == {"--speculative-config", config, *metrics}


def test_sglang_drafts_a_chain(tmp_path: Path) -> None:
    flags = flags_of("sglang", launch(tmp_path, "eagle3", tmp_path))
    assert flags["--speculative-algorithm"] == "EAGLE3"
    assert flags["--speculative-num-draft-tokens"] == "5"
    assert "--disable-radix-cache" in flags


def test_llamacpp_has_float32_caches_only_on_request(tmp_path: Path) -> None:
    """llama.cpp's flash attention computes in float16.

    Its log-probabilities are off by 0.0006, those without it by 0.00001.
    """
    with pytest.raises(UserError, match="has no GGUF file"):
        gguf_file(tmp_path)
    (tmp_path / "model.gguf").touch()
    wide = launch(tmp_path, "sps", tmp_path)
    assert "--no-cache-prompt" in flags_of("llamacpp", wide)
    half = flags_of("llamacpp", replace(wide, dtype="float16"))
    assert not {"--flash-attn", "--cache-type-k", "--cache-type-k-draft"} & half.keys()
    ngram = flags_of("llamacpp", replace(wide, method="ngram", weights=None))
    assert "--cache-type-k" in ngram and "--cache-type-k-draft" not in ngram
    assert ngram["--spec-ngram-simple-size-m"] == "4" and "--spec-draft-n-max" not in ngram


def test_the_memory_of_vllms_suffix_is_recorded_and_can_be_turned_off(tmp_path: Path) -> None:
    info = setup_of("suffix,suffix:scope=request").describe()
    scopes = {name: (method.scope, method.options) for name, method in info.methods.items()}
    assert scopes == {
        "vanilla": ("request", {}),
        "suffix": ("run", {"scope": "run"}),
        "suffix:scope=request": ("request", {"scope": "request"}),
    }
    (warning,) = [text for text in info.warnings if "earlier requests" in text]
    assert warning.startswith("suffix learns")
    asked = launch(tmp_path, "suffix")
    configs = [
        flags_of("vllm", replace(asked, scope=scope))["--speculative-config"]
        for scope in ("run", "request")
    ]
    assert ['"suffix_decoding_max_cached_requests": 0' in text for text in configs] == [False, True]
    other = replace(launch(tmp_path, "ngram"), scope="request")
    assert "suffix" not in flags_of("vllm", other)["--speculative-config"], (
        "older versions refuse it"
    )


def test_vllm_gets_medusa_heads_in_its_configuration(tmp_path: Path) -> None:
    tiny = Path(find_model("tiny").repo)
    medusa = replace(launch(tmp_path, "medusa", tiny.parent / "medusa"), model=tiny)
    assert str(medusa.scratch) in flags_of("vllm", medusa)["--speculative-config"]
    assert (medusa.scratch / "medusa_lm_head.pt").exists()
    assert '"architectures": ["MedusaModel"]' in (medusa.scratch / "config.json").read_text()
    link = medusa.scratch / "medusa_lm_head.pt"
    link.unlink()
    link.symlink_to(tmp_path / "gone")  # as if the heads had moved
    flags_of("vllm", medusa)
    assert link.exists()


def test_medusas_sizes_come_from_the_text_model(tmp_path: Path) -> None:
    heads, model = tmp_path / "heads", tmp_path / "model"
    for folder, config in (
        (heads, {"medusa_num_heads": 4}),
        (model, {"text_config": {"hidden_size": 64, "vocab_size": 96}}),
    ):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    medusa = replace(launch(tmp_path, "medusa", heads), model=model)
    with pytest.raises(CheckpointError, match=r"heads: config\.json has no medusa_num_layers"):
        flags_of("vllm", medusa)
    for own_fields, has_bias in (({}, True), ({"medusa_fc_bias": False}, False)):
        config = {"medusa_num_heads": 4, "medusa_num_layers": 1, **own_fields}
        (heads / "config.json").write_text(json.dumps(config))
        flags_of("vllm", medusa)
        written = json.loads((medusa.scratch / "config.json").read_text())
        assert (written["hidden_size"], written["vocab_size"]) == (64, 96)
        assert written["medusa_fc_bias"] is has_bias


def test_an_eagle_head_with_a_bias_is_left_out_by_default() -> None:
    left = setup_of()
    assert {*left.labels} == {"vanilla", "ngram", "sps", "eagle3", "medusa"}
    assert any("fc.bias" in text for text in left.describe().warnings)


def test_a_command_is_recorded_without_folders() -> None:
    given = [
        "/opt/my env/bin/vllm",
        "--model=/home/me/tiny",
        "http://127.0.0.1:80/v1",
        "a/b",
        '{"model": "/data/heads/eagle3", "num_speculative_tokens": 4}',
        "/models/tiny/",
    ]
    assert [without_folders(word) for word in given] == [
        "vllm", "--model=tiny", "http://127.0.0.1:80/v1", "a/b",
        '{"model": "eagle3", "num_speculative_tokens": 4}', "tiny/",
    ]  # fmt: skip


def test_the_device_of_an_engine_comes_from_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        sys.modules, "pynvml", FakeNvml(nvmlDeviceGetCount=1, nvmlDeviceGetHandleByIndex="a card")
    )
    assert (_device("auto"), _device("cpu")) == ("cuda", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert _device("auto") == "cpu"


def llamacpp_setup(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, wheel: str = "xllamacpp", **values: Any
) -> StartedSetup:
    """The setup without `llama-server` on the PATH, with an installed wheel."""
    write_gguf(folder / "small.gguf")
    monkeypatch.setenv("SPECBENCH_CACHE", str(folder / "cache"))
    monkeypatch.setattr(executable, "shutil", types.SimpleNamespace(which=lambda name: None))
    util = types.SimpleNamespace(find_spec=lambda name: name == wheel or None)
    monkeypatch.setattr(executable, "util", util)
    metadata = types.SimpleNamespace(version=lambda name: "7.5")
    monkeypatch.setattr(executable, "metadata", metadata)
    spec = make_spec(
        model=str(folder / "small.gguf"), methods=("ngram",), device="cpu", backend="server",
        serving_engine="llamacpp", **values,
    )  # fmt: skip
    return make_started_setup(spec, is_offline=True)


def test_without_an_executable_the_wheel_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = llamacpp_setup(monkeypatch, tmp_path, threads=2, engine_args=("--poll", "50"))
    assert "(llama.cpp of xllamacpp 7.5, cpu)" in setup.title
    assert any("comes from the wheel xllamacpp 7.5" in text for text in setup.describe().warnings)
    words = setup.command_line(setup.servers["ngram"])
    assert setup.executable.wheel == "xllamacpp 7.5"
    assert words[:6] == [
        "env",
        "LLAMA_ARG_THREADS=2",
        "LLAMA_ARG_THREADS_BATCH=2",
        sys.executable,
        "-P",
        llama_server.__file__,
    ]
    assert Path(words[words.index("--model") + 1]).name in setup.describe().model.files
    assert words[-2:] == ["--poll", "50"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--poll", "0", "--mlock"), "does not take --mlock"),
        (("--port", "1"), "does not take --port"),
        (("--poll", "half"), "--poll: invalid int value: 'half'"),
    ],
)
def test_arguments_that_the_wheel_does_not_take_are_refused_by_name(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        llamacpp_setup(monkeypatch, tmp_path, engine_args=words)
    assert "--ubatch-size" in caught.value.hint and "--engine-command" in caught.value.hint


def test_threads_are_set_for_engines_that_have_them() -> None:
    setup = setup_of("ngram", threads=3)
    words = setup.command_line(setup.servers["vanilla"])
    assert words[:3] == ["env", "OMP_NUM_THREADS=3", "VLLM_CPU_OMP_THREADS_BIND=nobind"]


def test_without_engine_and_wheel_the_message_names_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with error_with(UserError, "there is no llama-server", hint="pip install xllamacpp"):
        llamacpp_setup(monkeypatch, tmp_path, wheel="")


def test_the_launcher_sets_every_parameter_that_a_run_relies_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.gguf").touch()
    wheel = mock.Mock()
    monkeypatch.setitem(sys.modules, "xllamacpp", wheel)
    monkeypatch.setattr(signal, "pause", lambda: None)
    monkeypatch.setenv("LLAMA_ARG_THREADS", "2")
    words = load_engine("llamacpp").arguments(launch(tmp_path, "sps", tmp_path))
    monkeypatch.setattr(sys, "argv", ["llama_server.py", *words, "--threads-batch", "3"])
    llama_server.main()
    both = {
        "cpuparams.n_threads": 2,
        "cpuparams_batch.n_threads": 3,
        "cpuparams.poll": 0,
        "cpuparams_batch.poll": 0,
        "cache_type_k": wheel.ggml_type.GGML_TYPE_F32,
        "cache_type_v": wheel.ggml_type.GGML_TYPE_F32,
    }
    draft = {"mparams.path": str(tmp_path / "model.gguf"), "n_max": 4, "n_min": 0, "p_min": 0.0}
    expected = {
        "endpoint_metrics": True,
        "cache_prompt": False,
        "cache_ram_mib": 0,
        "hostnames": ["127.0.0.1"],
        "port": 8123,
        "model_alias": {"tiny"},
        "model.path": str(tmp_path / "model.gguf"),
        "n_ctx": 2048 * 8,
        "n_parallel": 8,
        "n_batch": 2048,
        "n_ubatch": 512,
        "flash_attn_type": wheel.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        **both,
        **{f"speculative.draft.{name}": value for name, value in {**both, **draft}.items()},
        "speculative.types": [wheel.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE],
        "speculative.ngram_simple.size_n": 3,
        "speculative.ngram_simple.size_m": 5,
    }
    (params,) = wheel.Server.call_args.args
    assert {name: attrgetter(name)(params) for name in expected} == expected
