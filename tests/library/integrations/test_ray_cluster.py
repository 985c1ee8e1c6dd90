"""The request router on a real Ray cluster of one machine, with three replicas."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve._private.request_router import request_router
from ray.serve.handle import DeploymentHandle
from tests.gateways import wait_until
from tests.library.integrations.ray_fakes import PREFIX_KWARGS, STORY

from cachelb.integrations.ray_serve import CachelbRequestRouter, start_prefix_tree

deployment: Any = serve.deployment  # its types and those of `remote` know decorators only


class Gate:
    """Holds requests until it is opened."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._inside = 0

    async def wait(self) -> None:
        self._inside += 1
        await self._open.wait()

    async def inside(self) -> int:
        return self._inside

    async def open(self) -> None:
        self._open.set()


class Model:
    """Answers with the name of its replica; with a gate in the body, once that is open."""

    def __init__(self) -> None:
        self.name = serve.get_replica_context().replica_id.unique_id

    async def process(self, _body: dict[str, Any]) -> int:
        return os.getpid()

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        yield self.name
        await body["gate"].wait.remote()

    @serve.multiplexed(max_num_models_per_replica=3)  # type: ignore[untyped-decorator]
    async def load(self, model_id: str) -> str:
        return model_id

    async def __call__(self, body: dict[str, Any]) -> str:
        if model_id := serve.get_multiplexed_model_id():
            await self.load(model_id)
        if gate := body.get("gate"):
            await gate.wait.remote()
        return self.name


@dataclass
class Prompt:
    """A request as Ray's own router takes it."""

    prompt: str

    def get(self, name: str) -> None:
        """Have no gate."""


remote: Any = ray.remote(num_cpus=0)
OPTIONS: dict[str, Any] = {
    # Without a version, Serve takes every deployment for new code and replaces all replicas.
    "version": "1",
    "_internal": True,
    "ray_actor_options": {"num_cpus": 0},
    "health_check_period_s": 0.5,
    "graceful_shutdown_timeout_s": 2,
    "graceful_shutdown_wait_loop_s": 0.1,
}


def begin(folder: str, attempts: int = 3) -> None:
    """Start the cluster.

    Ray forks here. A child in which a collection, or a hook of whatever ran before, meets an object of gRPC's or a lock
    that was held, hangs; another attempt forks at another moment.
    """
    for left in reversed(range(attempts)):
        gc.collect()
        gc.disable()
        try:
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=100_000_000,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
                log_to_driver=False,
            )
        except Exception:
            ray.shutdown()
            if not left:
                raise
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # of the processes of this attempt, which were killed
                gc.collect()
        else:
            return
        finally:
            gc.enable()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short, as Ray makes socket paths of it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Serve asks others when a replica does not report its queue length within a tenth of a second, or when one
        # with the model takes nothing for a second: on a machine that stands still, requests went elsewhere.
        patch.setattr(request_router, "RAY_SERVE_MULTIPLEXED_MODEL_ID_MATCHING_TIMEOUT_S", 60.0)
        for name in ("queue_len_response_deadline_s", "max_queue_len_response_deadline_s"):
            patch.setattr(request_router.RequestRouter, name, 30.0)
        begin(folder)
        try:
            serve.start(proxy_location="Disabled")
            yield
        finally:
            serve.shutdown()  # type: ignore[no-untyped-call]
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


class App:
    """A deployment, and the router of this process's handle to it."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self._deployment = deployment(Model).options(**OPTIONS, **options)
        self.handle: DeploymentHandle[Any] = serve.run(self._deployment.bind(), name=name, route_prefix=None)

    def scale(self, replicas: int) -> None:
        self._deployment = self._deployment.options(num_replicas=replicas, version="1", _internal=True)
        serve.run(self._deployment.bind(), name=self.name, route_prefix=None)
        wait_until(lambda: len(self.router.fleet.keys()) == replicas)

    def ask(self, prompt: str | None, **options: Any) -> str:
        handle = self.handle.options(**options) if options else self.handle
        return str(handle.remote({"prompt": prompt}).result(timeout_s=180))

    @property
    def router(self) -> CachelbRequestRouter:
        found = router_of(self.handle)
        assert found is not None
        return found

    def wait_idle(self) -> None:
        wait_until(lambda: sum(self.router.fleet.loads().values()) == 0)


def router_of(handle: DeploymentHandle[Any]) -> CachelbRequestRouter | None:
    router: CachelbRequestRouter | None = handle._router._asyncio_router._request_router  # type: ignore[union-attr]
    return router


@pytest.fixture(scope="module")
def running(cluster: None) -> App:
    return App(
        "chat",
        num_replicas=3,
        max_ongoing_requests=200,
        request_router_config={
            "request_router_class": "cachelb.integrations.ray_serve.CachelbRequestRouter",
            "request_router_kwargs": {"seed": 1, "shared": True, "share_interval_s": 0.05},
        },
    )


@pytest.fixture
def app(running: App) -> App:
    """The deployment, with three replicas that the router knows and nothing under way."""
    running.ask(None)
    wait_until(lambda: len(running.router.fleet.keys()) == 3)
    running.wait_idle()
    return running


def test_prompts_stay_with_their_replicas_and_leave_no_load(app: App) -> None:
    asked = Counter((at % 6, app.ask(f"affinity {at % 6} {STORY}")) for at in range(30))
    assert sorted(asked.values()) == [5] * 6, "each of six prompts went to one replica, five times"
    assert len({replica for _, replica in asked}) == 3
    app.wait_idle()
    assert app.router.counters()["failed"] == 0
    assert app.router.fleet.stats().open_requests == 0


def test_one_prompt_for_all_does_not_end_at_one_replica(app: App) -> None:
    gate = remote(Gate).remote()
    body = {"prompt": f"monopoly {STORY}", "gate": gate}
    responses: list[Any] = [app.handle.remote(body) for _ in range(60)]
    wait_until(lambda: ray.get(gate.inside.remote()) == 60)
    assert sum(app.router.fleet.loads().values()) == 60
    ray.get(gate.open.remote())
    spread = Counter(response.result(timeout_s=180) for response in responses)
    assert max(spread.values()) <= 40, spread
    app.wait_idle()


def test_caller_that_gives_up_leaves_no_load(app: App) -> None:
    gate = remote(Gate).remote()
    response: Any = app.handle.remote({"prompt": f"cancelled {STORY}", "gate": gate})
    wait_until(lambda: ray.get(gate.inside.remote()) == 1)
    response.cancel()
    app.wait_idle()


def test_multiplexed_model_stays_with_its_replica(app: App) -> None:
    first = app.ask(STORY, multiplexed_model_id="french")
    router = app.router
    wait_until(lambda: any("french" in replica.multiplexed_model_ids for replica in router.curr_replicas.values()))
    assert {app.ask(f"{at} {STORY}", multiplexed_model_id="french") for at in range(6)} == {first}


def dead(actor: Any) -> bool:
    try:
        ray.get(actor.is_allocated.remote())
    except ray.exceptions.RayActorError:
        return True
    return False


def test_dead_replica_is_replaced(app: App) -> None:
    prompt = f"death {STORY}"
    victim = app.ask(prompt)
    key = next(key for key in app.router.fleet.keys() if key.endswith(victim))  # noqa: SIM118 - a method of the router
    replica = ray.get_actor(key, namespace="serve")
    ray.kill(replica)
    wait_until(lambda: dead(replica))  # until then it may take a request, which Serve does not send again
    replacement = app.ask(prompt)
    assert replacement != victim
    assert app.ask(prompt) == replacement
    wait_until(lambda: len({*app.router.fleet.keys()} - {key}) == 3)
    app.wait_idle()


def test_scale_up_is_used_and_scale_down_forgotten(app: App) -> None:
    before = set(app.router.fleet.keys())
    app.scale(4)
    assert before < set(app.router.fleet.keys()), "those that were there stay"
    assert len({app.ask(f"scale {at} {STORY}") for at in range(16)}) == 4
    app.scale(3)
    left = set(app.router.fleet.keys())
    assert {app.ask(f"scale {at} {STORY}") for at in range(16)} == {key.rpartition("#")[2] for key in left}
    app.wait_idle()


class Ingress:
    """Another process with a handle, and so with a router of its own."""

    def __init__(self, app: str, *, prefer_local: bool = False) -> None:
        handle: Any = serve.get_app_handle(app)
        handle._init(_prefer_local_routing=prefer_local)
        self._handle = handle

    async def ask(self, prompt: str | None) -> str:
        return str(await self._handle.remote({"prompt": prompt}))

    def router(self) -> CachelbRequestRouter:
        router = router_of(self._handle)
        assert router is not None
        return router

    async def counters(self) -> dict[str, int]:
        return self.router().counters()

    async def loads(self) -> dict[str, int]:
        return self.router().fleet.loads()

    async def matched(self, prompt: str) -> float:
        return max(worker.matched_tokens for worker in self.router().fleet.explain(text=prompt).candidates)

    async def prefers_local(self) -> bool:
        return self.router()._prefer_local_node_routing


def test_state_survives_the_router_that_made_it(app: App) -> None:
    prompts = [f"survivor {at} {STORY}" for at in range(6)]
    first = remote(Ingress).remote(app.name)
    placed = [ray.get(first.ask.remote(prompt)) for prompt in prompts]
    wait_until(lambda: ray.get(first.counters.remote())["sent"] == len(prompts))
    ray.kill(first)

    second = remote(Ingress).remote(app.name, prefer_local=True)
    ray.get(second.ask.remote(None))
    wait_until(lambda: ray.get(second.counters.remote())["received"] >= len(prompts))
    assert [ray.get(second.ask.remote(prompt)) for prompt in prompts] == placed
    assert ray.get(second.prefers_local.remote())
    ray.kill(second)


def test_load_and_placements_are_shared_through_an_actor_that_may_be_lost(cluster: None) -> None:
    kwargs = {"seed": 1, "secret": "known to all gateways", "share_load": True}
    router_class = "cachelb.integrations.ray_serve.CachelbRequestRouter"
    config = {"request_router_class": router_class, "request_router_kwargs": kwargs}
    app = App("loads", num_replicas=3, max_ongoing_requests=100, request_router_config=config)
    other = remote(Ingress).remote(app.name)
    try:
        ray.get(other.ask.remote(None))
        app.ask(None)
        gate = remote(Gate).remote()

        def agree(requests: int) -> bool:
            loads = app.router.fleet.loads()
            return sum(loads.values()) == requests and ray.get(other.loads.remote()) == loads

        def send(number: int) -> list[Any]:
            return [app.handle.remote({"prompt": f"{number + at} {STORY}", "gate": gate}) for at in range(10)]

        responses = send(0)
        wait_until(lambda: agree(10))
        log = ray.get_actor("state:loads:Model", namespace="cachelb")
        ray.kill(log, no_restart=False)
        responses += send(10)
        wait_until(lambda: agree(20))
        wait_until(lambda: all(ray.get(other.matched.remote(f"{at} {STORY}")) for at in range(20)))
        ray.get(gate.open.remote())
        assert len({response.result(timeout_s=180) for response in responses}) == 3
        wait_until(lambda: agree(0))
        state = app.router.fleet.stats().state
        assert state is not None
        assert [peer.bookings for peer in state.peers] == [0]
    finally:
        ray.kill(other)
        serve.delete("loads")
        ray.kill(ray.get_actor("state:loads:Model", namespace="cachelb"))


class Callers:
    """Callers that wait many times as long as answers took so far, and over two seconds, as less shows nothing."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._took_s: list[float] = []
        self._prompts = (f"{number} {STORY}" for number in itertools.count())

    def patience_s(self) -> float:
        return max(2.5, 24 * statistics.mean(self._took_s))

    def timed(self, began: float, prompts: int = 1) -> None:
        """Note how long an answer took that began then, for so many prompts before a worker."""
        self._took_s.append(prompts * (time.monotonic() - began))

    def give_up(self, responses: list[Any]) -> None:
        time.sleep(self.patience_s())
        for response in responses:
            response.cancel()

    def ask(self, pool: ThreadPoolExecutor) -> int:
        """Ask eight times at once, give up once no answer came for long, and return how often."""
        began = time.monotonic()
        responses: list[Any] = [self._app.handle.remote({"prompt": next(self._prompts)}) for _ in range(8)]
        waiting = {pool.submit(response.result, timeout_s=180): response for response in responses}
        while done := wait(waiting, timeout=self.patience_s(), return_when=FIRST_COMPLETED).done:
            self.timed(began)
            for future in done:
                future.result()
                del waiting[future]
        for response in waiting.values():
            response.cancel()
        return sum(future.exception() is not None for future in waiting)


def test_callers_that_give_up_show_which_replica_hangs(cluster: None) -> None:
    config = {"request_router_class": CachelbRequestRouter, "request_router_kwargs": {"seed": 1}}
    app = App("hung", num_replicas=2, max_ongoing_requests=200, request_router_config=config)
    callers = Callers(app)

    def states() -> list[str]:
        return sorted(row.state for row in app.router.fleet.stats().workers)

    gate = remote(Gate).remote()
    process = None
    try:
        body = {"prompt": f"hung {STORY}", "gate": gate}
        # First tokens teach the speed: of prompts that are cached whole, that would be next to none.
        longer = {**body, "prompt": body["prompt"] + STORY}
        began = time.monotonic()
        replica = app.ask(body["prompt"])
        callers.timed(began)
        app.wait_idle()
        handle: Any = app.handle
        began, streams = time.monotonic(), [handle.options(stream=True).stream.remote(longer) for _ in range(2)]
        assert [next(stream) for stream in streams] == [replica] * 2
        callers.timed(began, prompts=4)  # half of a round
        wait_until(lambda: ray.get(gate.inside.remote()) == 2)
        callers.give_up(streams)
        app.wait_idle()
        assert states() == ["ready", "ready"], "both streams had begun"
        held = [handle.remote(body) for _ in range(2)]
        wait_until(lambda: ray.get(gate.inside.remote()) == 4)
        callers.give_up(held)
        wait_until(lambda: states() == ["ready", "unreachable"])
        hung = next(row.key for row in app.router.fleet.stats().workers if row.state == "unreachable")
        ray.get(gate.open.remote())
        app.router.fleet.load_sink.update_health(hung, answered=True, restarted=True)
        with ThreadPoolExecutor(8) as pool:
            assert [callers.ask(pool) for _ in range(2)] == [0, 0]
            process = handle.process.remote({"prompt": body["prompt"]}).result(timeout_s=180)
            app.wait_idle()
            os.kill(process, signal.SIGSTOP)
            lost = [callers.ask(pool) for _ in range(3)]
        assert 2 <= lost[0] <= 5, lost
        assert lost[1:] == [0, 0], lost
        assert states() == ["ready", "unreachable"]
        app.wait_idle()
    finally:
        if process is not None:
            os.kill(process, signal.SIGCONT)
        serve.delete("hung")


def test_snippet_of_ray_s_prefix_router_works_with_the_class_exchanged(cluster: None) -> None:
    """And two requests at a time at most: most attempts are refused, and every request is served once."""
    deployment_config = {
        "autoscaling_config": {"min_replicas": 2, "max_replicas": 2},
        "max_ongoing_requests": 2,
        "request_router_config": {
            "request_router_class": CachelbRequestRouter,
            "request_router_kwargs": PREFIX_KWARGS,
        },
    }
    app = App("snippet", **deployment_config)
    try:
        prompts = [f"snippet {at} {STORY}" for at in range(2)]
        placed = [app.ask(prompt) for prompt in prompts]
        assert [app.ask(prompt) for prompt in prompts] == placed
        assert app.router.fleet.policy.name == "prefix-affinity"
        responses = [app.handle.remote({"prompt": f"{at % 5} {STORY}"}) for at in range(60)]
        assert len([response.result(timeout_s=180) for response in responses]) == 60
        app.wait_idle()
        assert app.router.fleet.stats().open_requests == 0
    finally:
        serve.delete("snippet")


def test_rays_own_prefix_router_runs_on_our_tree(cluster: None) -> None:
    tree = start_prefix_tree("Model", "rays")
    assert ray.get(tree.getattr.remote("tenant_to_char_count")) == {}
    path = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router.PrefixCacheAffinityRouter"
    app = App("rays", num_replicas=2, request_router_config={"request_router_class": path})
    try:
        prompts = [f"{at} {STORY}" for at in range(2)]
        placed = [app.handle.remote(Prompt(prompt)).result(timeout_s=180) for prompt in prompts]
        assert [app.handle.remote(Prompt(prompt)).result(timeout_s=180) for prompt in prompts] == placed
        counts = ray.get(tree.getattr.remote("tenant_to_char_count"))
        assert sum(counts.values()) == sum(map(len, prompts))
        assert {key.rpartition("#")[2] for key, count in counts.items() if count} == set(placed)
    finally:
        serve.delete("rays")
        ray.kill(tree)


def test_example_runs_and_its_conversations_stay_where_they_are_cached(cluster: None) -> None:
    example = Path(__file__).parents[3] / "examples" / "ray_serve_app.py"
    address = ray.get_runtime_context().gcs_address
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(example), "--replicas", "2"]
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=480)
        assert run.returncode == 0, run.stderr
        share, found, _ = run.stdout.splitlines()[-1].partition("% of the earlier messages")
        # Without affinity it is about half. A replica that stood still for a while counts as slow, and loses a turn.
        assert found, run.stdout
        assert int(share) >= 90, run.stdout
    finally:
        serve.delete("cachelb-example")
