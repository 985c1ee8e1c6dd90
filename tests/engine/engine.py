"""A real vLLM on CPU as a process that tests start, ask, kill and start again on the same ports."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import zmq
from tests.http_client import send
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
MODEL_NAME = "m"
BLOCK_SIZE = 32  # the CPU attention of vLLM accepts multiples of 32 only
READY_DEADLINE_S = 900.0  # 25 s on idle cores, minutes on busy ones
STOP_DEADLINE_S = 30.0
KILL_DEADLINE_S = 60.0
REQUEST_DEADLINE_S = 120.0
LOG_TAIL_LINES = 60
END_OF_REPLAY = b"\xff" * 8
REPLAY_DEADLINE_MS = 60_000
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # opens /reset_prefix_cache
    "VLLM_HOST_IP": "127.0.0.1",
    "PYTHONHASHSEED": "42",
}


class EngineError(Exception):
    """The engine did not do what it was asked; the message ends with the last lines of its log."""


def environment_python() -> Path:
    """Return the interpreter of the environment that `make test-engine` fills."""
    python = Path(os.environ.get("CACHELB_ENGINE_VENV", ROOT / ".venv-engine")) / "bin" / "python"
    if not python.exists():
        message = f"no {python}: run `make test-engine`, or set CACHELB_ENGINE_VENV to an environment it has made"
        raise EngineError(message)
    return python


def write_model(folder: Path, *, size: str = "tiny", adapters: Iterable[str] = ()) -> Path:
    """Write a model into a folder that does not exist yet, and return the folder."""
    command = [str(environment_python()), str(Path(__file__).with_name("model.py")), str(folder), "--size", size]
    for name in adapters:
        command += ["--adapter", name]
    subprocess.run(command, check=True)
    return folder


@dataclass(frozen=True, slots=True)
class Completion:
    """The engine's answer; `cached_tokens` is its own count of the prompt tokens it had cached."""

    output: list[int]
    prompt_tokens: int
    cached_tokens: int


class Engine:
    """One vLLM on loopback, with KV events and replay.

    As a context manager it is ready inside the block and gone after it. `running` starts several at the same
    time.

    Args:
        model: Folder that `write_model` made.
        log: File that takes what the engine writes, restarts included.
        name: Name for messages; also part of the topic, `kv-events@<name>@m`.
        num_gpu_blocks: Blocks of the KV cache; one of them is vLLM's own.
        max_model_len: Longest prompt plus answer, in tokens.
        core: The one CPU the engine computes on.
        adapters: Names of adapters of the model to load; requests choose one with `adapter=`.
        flags: Further arguments of `vllm serve`.
        environment: Further variables, over `ENVIRONMENT`.
        topic: Topic of the events, instead of the one made of the name.
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        *,
        name: str = "w0",
        num_gpu_blocks: int = 64,
        max_model_len: int = 768,
        core: int = 0,
        adapters: Sequence[str] = (),
        flags: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        topic: str | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.block_size = BLOCK_SIZE
        self.num_gpu_blocks = num_gpu_blocks
        self.max_model_len = max_model_len
        self.topic = f"kv-events@{name}@{MODEL_NAME}" if topic is None else topic
        self.port, self.events_port, self.replay_port = free_ports(3)
        self._python = environment_python()
        own = {"VLLM_CPU_OMP_THREADS_BIND": str(core), "VLLM_CACHE_ROOT": str(self._python.parents[1] / "cache")}
        self._environment = ENVIRONMENT | own | (environment or {})
        self._arguments = self._make_arguments(model, adapters, flags)
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch = ""

    @property
    def url(self) -> str:
        """Address for HTTP; a worker's key."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def events_endpoint(self) -> str:
        """Where to connect a SUB socket."""
        return f"tcp://127.0.0.1:{self.events_port}"

    @property
    def replay_endpoint(self) -> str:
        """Where to connect a DEALER socket."""
        return f"tcp://127.0.0.1:{self.replay_port}"

    def replay(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield every batch that it has published since it started, from one on, with its number."""
        with zmq.Context[zmq.Socket[bytes]]() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(self.replay_endpoint)
            dealer.send_multipart([b"", first.to_bytes(8, "big")])
            while dealer.poll(REPLAY_DEADLINE_MS):
                *_, number, payload = dealer.recv_multipart()
                if number == END_OF_REPLAY:
                    return
                yield int.from_bytes(number, "big"), payload
        raise TimeoutError(f"the replay of {self.name} does not end")

    @property
    def pid(self) -> int:
        """Process group of the running engine."""
        if self._process is None:
            message = f"engine {self.name} is not started"
            raise EngineError(message)
        return self._process.pid

    def _make_arguments(self, model: Path, adapters: Sequence[str], flags: Sequence[str]) -> list[str]:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            # The engine binds only where the address has a star; with a host it connects and expects us to bind.
            "endpoint": f"tcp://*:{self.events_port}",
            "replay_endpoint": self.replay_endpoint,
            "topic": self.topic,
            "buffer_steps": 10_000,
        }
        options: dict[str, object] = {
            "--served-model-name": MODEL_NAME,
            "--host": "127.0.0.1",
            "--port": self.port,
            "--load-format": "dummy",
            "--dtype": "bfloat16",
            "--block-size": BLOCK_SIZE,
            "--max-num-seqs": 8,
            "--max-model-len": self.max_model_len,
            "--num-gpu-blocks-override": self.num_gpu_blocks,
            "--kv-events-config": json.dumps(events),
        }
        arguments = [str(self._python.with_name("vllm")), "serve", str(model)]
        for flag, value in options.items():
            arguments += [flag, str(value)]
        arguments += ["--enable-prefix-caching", "--enforce-eager"]
        arguments += ["--enable-prompt-tokens-details", "--enable-server-load-tracking", "--enable-request-id-headers"]
        if adapters:
            modules = [f"{name}={model / 'adapters' / name}" for name in adapters]
            arguments += ["--enable-lora", "--max-lora-rank", "8", "--max-loras", str(len(adapters))]
            arguments += ["--lora-modules", *modules]
        return [*arguments, *flags]

    # --- life ---

    def start(self) -> None:
        """Start the process and return at once."""
        if self._process is not None:
            message = f"engine {self.name} is started already"
            raise EngineError(message)
        # vLLM leaves files behind; sockets among them, so the path is short.
        self._scratch = tempfile.mkdtemp(prefix="engine-")
        with self.log.open("ab") as log:
            log.write(f"--- {' '.join(self._arguments)}\n".encode())
            log.flush()
            # A session of its own: one engine is several processes, and only the group finds them all.
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self._environment | {"TMPDIR": self._scratch},
                start_new_session=True,
            )

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Wait until the engine answers `/health`."""
        self._wait(self._is_healthy, deadline_s, "does not answer /health")

    def is_alive(self) -> bool:
        """Return whether any process of the engine runs."""
        return self._process is not None and bool(_group(self._process.pid))

    def stop(self) -> None:
        """End all processes of the engine, by force after 30 s; without effect where none runs."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End all processes of the engine at once, as a crash does: nothing is announced."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same ports and wait until ready; the cache is empty and sequence numbers begin at 0."""
        self.stop()
        self.start()
        self.wait_ready()

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_healthy(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise self._failure(f"ended with exit code {self._process.returncode}")
        try:
            return send(self.url, "/health").status == 200
        except OSError:
            return False

    def _end(self, first: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        pid = process.pid
        left_behind = _shared_memory(_group(pid))

        def is_gone() -> bool:
            return process.poll() is not None and not _group(pid)

        _signal_group(pid, first)
        if first is not signal.SIGKILL:
            # An engine that is still starting does not always end when asked to.
            with contextlib.suppress(EngineError):
                self._wait(is_gone, STOP_DEADLINE_S, "does not stop")
            _signal_group(pid, signal.SIGKILL)
        self._wait(is_gone, KILL_DEADLINE_S, "survives SIGKILL")
        self._process = None
        shutil.rmtree(self._scratch, ignore_errors=True)
        for path in left_behind:
            path.unlink(missing_ok=True)

    def _wait(self, condition: Callable[[], bool], deadline_s: float, complaint: str) -> None:
        end = time.monotonic() + deadline_s
        pause = threading.Event()
        while not condition():
            if time.monotonic() > end:
                raise self._failure(f"{complaint} after {deadline_s:.0f} s")
            pause.wait(0.05)

    def _failure(self, complaint: str) -> EngineError:
        return EngineError(f"engine {self.name} {complaint}; its log ends with:\n{self.log_tail()}")

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """Return the last lines the engine wrote."""
        return "\n".join(self.log.read_text("utf-8", errors="replace").splitlines()[-lines:])

    # --- requests ---

    def get(self, path: str) -> Any:
        """Read a JSON page."""
        return self._ask(path, None)

    def post(self, path: str, body: object) -> Any:
        """Send JSON and read the JSON that comes back."""
        return self._ask(path, body)

    def complete(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 1,
        adapter: str | None = None,
        cache_salt: str | None = None,
        **fields: object,
    ) -> Completion:
        """Complete a prompt of token ids, the same way each time.

        Args:
            prompt: Token ids.
            max_tokens: Tokens to generate; the end-of-text token does not stop earlier.
            adapter: One of the adapters the engine was started with.
            cache_salt: Partition of the prefix cache.
            **fields: Further fields of the body.

        Returns:
            The answer with the engine's own count of cached tokens.

        Raises:
            EngineError: The engine answered anything but 200.
        """
        body = {
            "model": adapter or MODEL_NAME,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **({} if cache_salt is None else {"cache_salt": cache_salt}),
            **fields,
        }
        answer = self._ask("/v1/completions", body)
        usage = answer["usage"]
        details = usage["prompt_tokens_details"] or {}
        return Completion(answer["choices"][0]["token_ids"], usage["prompt_tokens"], details.get("cached_tokens") or 0)

    def reset_cache(self) -> None:
        """Empty the prefix cache, as soon as no block is in use. The engine announces it only with its next request."""
        self._wait(
            lambda: bool(self._ask("/reset_prefix_cache", b"")["success"]), REQUEST_DEADLINE_S, "keeps its cache"
        )

    def _ask(self, path: str, body: object) -> Any:
        headers = None if body is None else {"Content-Type": "application/json"}
        answer = send(self.url, path, body, headers, REQUEST_DEADLINE_S)
        if answer.status != 200:
            raise self._failure(f"answered {answer.status} to {path}: {answer.body.decode()}")
        return answer.json


@contextlib.contextmanager
def running(engines: Sequence[Engine]) -> Iterator[None]:
    """Start engines at the same time; they answer inside the block and are gone after it."""
    with contextlib.ExitStack() as stop:
        for engine in engines:
            stop.callback(engine.kill)
            engine.start()
        for engine in engines:
            engine.wait_ready()
        yield


def _signal_group(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, which)


def _shared_memory(pids: list[int]) -> set[Path]:
    """Return the shared memory that processes have mapped; it stays when they are killed."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text("utf-8").splitlines():
                _, separator, name = line.partition(" /dev/shm/psm_")
                if separator:
                    found.add(Path("/dev/shm") / f"psm_{name.removesuffix(' (deleted)')}")  # noqa: S108 - theirs
    return found


def _group(pid: int) -> list[int]:
    """Return the processes of a group that still run; dead ones that are not reaped yet do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in parentheses may hold anything; state, parent and group follow it.
            fields = (entry / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found
