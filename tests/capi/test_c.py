"""The C library: compiled as C and C++, under sanitizers, with options that are those of the Python router."""

from __future__ import annotations

import ctypes
import dataclasses
import inspect
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import cachelb

ROOT = Path(__file__).resolve().parents[2]
CAPI = ROOT / "rust" / "capi"
CALLS = ROOT / "tests" / "capi" / "calls.c"
SAMPLE = CAPI / "samples" / "c" / "route.c"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", f"-I{CAPI / 'include'}")
C = ("cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L")
CXX = ("c++", "-x", "c++", "-std=c++17")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def build(folder: Path, *features: str) -> Path:
    """Build the library beside what `cargo test` left, and return the folder that it is copied to."""
    command = ["cargo", "build", "--quiet", "--locked", "--package", "cachelb-c", *features]
    subprocess.run(command, cwd=ROOT, check=True)
    for name in ("libcachelb_c.a", "libcachelb_c.so"):
        shutil.copy(ROOT / "target" / "debug" / name, folder)
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as users have it."""
    return build(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def panicking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with the function that panics."""
    return build(tmp_path_factory.mktemp("panicking"), "--features", "test-hooks")


def compiled(words: tuple[str, ...], source: Path, library: Path, program: Path) -> Path:
    """Compile a program and link the static library."""
    static = ("-x", "none", str(library / "libcachelb_c.a"), "-lpthread", "-ldl", "-lm")
    subprocess.run([*words, *STRICT, str(source), *static, "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize(
    ("words", "rounds"),
    [(C, 100_000), (CXX, 1_000), ((*C, *SANITIZED), 5_000)],
    ids=["c11", "c++17", "sanitizers"],
)
def test_every_function_does_what_the_header_says(
    words: tuple[str, ...], rounds: int, panicking: Path, tmp_path: Path
) -> None:
    program = compiled(words, CALLS, panicking, tmp_path / "calls")
    ran = subprocess.run([program, str(rounds)], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("all as in the header\n", 0), ran.stderr


@pytest.mark.parametrize("words", [C, CXX], ids=["c11", "c++17"])
def test_sample_sends_a_prompt_back_to_its_worker(words: tuple[str, ...], library: Path, tmp_path: Path) -> None:
    program = compiled(words, SAMPLE, library, tmp_path / "route")
    first, second, stats = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    assert first.partition(":")[2].endswith("0 of 1000 tokens are cached there (cold)")
    assert second == first.replace(" 0 of", " 992 of").replace("cold", "prefix")
    assert json.loads(stats)["endings"] == {"completed": 2}


def stats_of(library: Path, options: str) -> Any:
    """Build a router from these options and read its counters."""
    functions = ctypes.CDLL(str(library / "libcachelb_c.so"))
    sink = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint8), ctypes.c_size_t)
    router, err, pieces = ctypes.c_void_p(), ctypes.create_string_buffer(200), []

    def gather(_: object, data: Any, length: int) -> int:
        pieces.append(bytes(data[:length]))
        return 0

    given = options.encode()
    made = functions.cachelb_router_new(given, ctypes.c_size_t(len(given)), ctypes.byref(router), err, 200)
    assert (made, err.value) == (0, b"")
    assert functions.cachelb_stats_json(router, ctypes.c_uint64(0), sink(gather), None) == 0
    assert functions.cachelb_router_free(router) == 0
    return json.loads(b"".join(pieces))


def test_options_have_the_defaults_of_the_python_router(library: Path) -> None:
    stats = stats_of(library, "{}")
    parameters = inspect.signature(cachelb.Router.__new__).parameters
    defaults = {name: each.default for name, each in parameters.items()} | dataclasses.asdict(cachelb.Health())
    assert stats["policy"] == defaults["policy"]
    assert stats["settings"] == {name: defaults[name] for name in stats["settings"]}
    assert len(stats["settings"]) == 6


def test_library_shows_nothing_but_what_the_header_declares(library: Path) -> None:
    nm = shutil.which("nm")
    assert nm is not None
    listed = subprocess.run(
        [nm, "-D", "--defined-only", library / "libcachelb_c.so"], capture_output=True, text=True, check=True
    )
    shown = {line.split()[-1] for line in listed.stdout.splitlines()}
    header = (CAPI / "include" / "cachelb.h").read_text("utf-8")
    assert shown
    assert [name for name in sorted(shown) if f" {name}(" not in header] == []
