"""LiteLLM: a callback that picks, of the deployments that LiteLLM finds healthy, the one to use.

LiteLLM asks `async_filter_deployments` with those that its own rules left, and uses the only one it gets back: health
checks, cooldowns and blocked deployments stay LiteLLM's. The filters that come after are thought of here, because a
list of one deployment is easily emptied: `order`, and deployments that LiteLLM excludes from a retry.

The end of a request comes from LiteLLM's events, by the id of the call. A request that is given up has no event: it is
over when LiteLLM drops its logging object, and failing that after `deadline_s`.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from cachelb.common.extras import need
from cachelb.decision import Decision
from cachelb.errors import NoWorkerAvailable
from cachelb.integrations.litellm import lifetimes
from cachelb.integrations.litellm.reading import candidates, is_prompt_list, metadata, tags, tried, usage
from cachelb.integrations.offered import Guest
from cachelb.integrations.parsed import as_body
from cachelb.metrics.family import Family
from cachelb.peers import outgoing
from cachelb.types import RequestArguments

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_log = logging.getLogger("cachelb.integrations.litellm")

_TIMED_OUT = 408  # LiteLLM's own timeouts carry it, and it is the worker that was late, not the client
_GATEWAY_TIMEOUT, _BAD_GATEWAY = 504, 502
_STARTS = "update_completion_start_time"


class CachelbCallback(Guest):
    """A LiteLLM callback that sends each request to the deployment its policy picks, by cached prefix and load.

    It is a `litellm.integrations.custom_logger.CustomLogger` for one LiteLLM `Router`, whatever groups of models that
    has; a worker is a deployment, and its key is `model_info.id`. Put it into `litellm.callbacks`, or name it in the
    configuration of the LiteLLM proxy under `litellm_settings.callbacks`. Nothing it does makes a request fail:
    where it cannot decide, LiteLLM does, and `fallbacks` counts why. Every pick and its reason is logged at DEBUG.

    An engine keeps a prompt cached until it needs the room, a provider of models for a time after its last use. A pick
    counts as long here: 300 seconds, 3,600 if all cached blocks of the request ask for "1h", or the seconds in
    the deployment's `model_info` under `cachelb: {cache_ttl_s: ...}`. An engine is a deployment with an `api_base`.

    Args:
        deadline_s: Seconds after which a request without an outcome no longer counts as load.
        forget_after_s: Seconds after which a deployment that LiteLLM no longer offers is forgotten.
        clock: Function that returns monotonic seconds.
        **router_options: Options of `cachelb.Router`, such as `policy`.

    Raises:
        ModuleNotFoundError: LiteLLM, of the extra `litellm`, is not installed.
        TypeError: An option has the wrong type, or there is no such option.
        ValueError: An option is out of range.

    Attributes:
        router: The router: its statistics, its workers, and `attach` for sources and sinks.
        fallbacks: Times LiteLLM decided, by reason: "no-candidates", every deployment is excluded, or has no id;
            "tags", their tags differ, and LiteLLM filters by tags after this; "no-worker", no worker can be picked;
            "error", something failed, which the log names.
        unread: Requests whose prompt holds what is no JSON, so that load alone decided.
        expired: Requests given up after `deadline_s`.

    Example:
        >>> from litellm.integrations.custom_logger import CustomLogger
        >>> callback = CachelbCallback()  # litellm.callbacks = [callback]
        >>> isinstance(callback, CustomLogger), callback.router.policy.name
        (True, 'adaptive')
    """

    def __new__(cls, **_options: Any) -> CachelbCallback:  # noqa: ANN401, PYI034 - of a class that is made here
        """Make an instance of the class that is also LiteLLM's, which is imported only now."""
        return object.__new__(_hosted(cls))

    def __init__(
        self,
        *,
        deadline_s: float = 600.0,
        forget_after_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
        **router_options: Any,  # noqa: ANN401 - options of any type
    ) -> None:
        if not deadline_s > 0:
            raise ValueError(f"deadline_s is {deadline_s}, it must be above 0")
        super().__init__(forget_after_s=forget_after_s, clock=clock, options=router_options)
        super(Guest, self).__init__()  # LiteLLM's own
        self.unread = 0
        self.expired = 0
        self._deadline_s = deadline_s
        self._bookings: dict[str, _Booking] = {}  # in the order of their deadlines
        self._bases: dict[str, str | None] = {}

    def metrics_url(self, key: str) -> str | None:
        """Return the metrics URL of a deployment's engine: `router.attach(MetricsSource(url=this.metrics_url))`.

        Args:
            key: Key of the worker, which is the deployment's id.

        Returns:
            The URL next to the deployment's `api_base`, None if it has none.
        """
        base = self._bases.get(key)
        return None if base is None else base.rstrip("/").removesuffix("/v1") + "/metrics"

    def export(self, registry: CollectorRegistry | None = None) -> None:
        """Show the router's metrics and the callback's counters on a Prometheus page.

        The LiteLLM proxy serves the default registry at `/metrics` once `prometheus` is one of its callbacks. Its
        multiprocess mode, with `PROMETHEUS_MULTIPROC_DIR`, shows no collectors: there, serve a page of your own.

        Args:
            registry: The registry; None is the default one.

        Raises:
            ModuleNotFoundError: prometheus_client, of the extra `prometheus`, is not installed.
            ValueError: The default registry shows a router already.

        Example:
            >>> from prometheus_client import CollectorRegistry, generate_latest
            >>> registry = CollectorRegistry()
            >>> CachelbCallback().export(registry)
            >>> b"cachelb_litellm_unread_total 0.0" in generate_latest(registry)
            True
        """
        from cachelb.metrics import PrometheusCollector

        collector = PrometheusCollector(self.router, lambda: _families(self))  # its error names a missing extra
        from prometheus_client import REGISTRY

        (REGISTRY if registry is None else registry).register(collector)

    # --- called by LiteLLM; its names ---

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[dict[str, Any]],
        messages: list[Any] | None,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: object = None,
    ) -> list[dict[str, Any]]:
        """Pick one of the deployments and book it.

        Args:
            model: Name of the group.
            healthy_deployments: The deployments that LiteLLM's filters left.
            messages: The messages, or None.
            request_kwargs: The other arguments of the call; it gets an id if it has none.
            parent_otel_span: Not used.

        Returns:
            A list of the one deployment, or `healthy_deployments` if LiteLLM is to decide.
        """
        del parent_otel_span
        try:
            chosen = self._choose(
                model, healthy_deployments, messages, {} if request_kwargs is None else request_kwargs
            )
            if isinstance(chosen, str):
                self.fallbacks[chosen] += 1
        except Exception as error:  # noqa: BLE001 - an exception here fails the request; counted and logged
            chosen = self._left(error, _log)
        if isinstance(chosen, str):
            _log.debug("%s: LiteLLM decides: %s", model, chosen)
            return healthy_deployments
        return [chosen]

    async def async_pre_call_deployment_hook(
        self, kwargs: Mapping[str, Any], call_type: object
    ) -> dict[str, Any] | None:
        """Watch LiteLLM's logging object of this attempt, and name the peer that the engine is to copy from.

        The object is dropped at the end, also if that is given up, and receives the time of a stream's first token.

        Args:
            kwargs: Arguments of the call.
            call_type: Not used.

        Returns:
            The arguments with the source of the decision in place of those of the client, None without peer groups.
        """
        del call_type
        call = kwargs.get("litellm_call_id") or ""
        log = kwargs.get("litellm_logging_obj")
        booking = self._bookings.get(call)
        if log is not None and booking is not None:
            booking.lives_as = lives_as = weakref.ref(log, partial(self._given_up, call))
            if hasattr(log, _STARTS):
                setattr(log, _STARTS, partial(_starts, lives_as, booking.decision))
        if not self.router.peer_groups.names():
            return None
        headers = {**(kwargs.get("headers") or {}), **(kwargs.get("extra_headers") or {})}
        sent, named = outgoing(None if booking is None else booking.decision, kwargs, headers.items())
        return {**sent, "headers": None, "extra_headers": dict(named)}

    async def async_log_success_event(
        self, kwargs: Mapping[str, Any], response_obj: object, start_time: object, end_time: object
    ) -> None:
        """Release the booking of a request that is complete.

        Args:
            kwargs: LiteLLM's data of the call.
            response_obj: The answer; of a stream, the sum of its parts.
            start_time: Not used.
            end_time: Not used.
        """
        del start_time, end_time
        booking = self._bookings.pop(kwargs.get("litellm_call_id") or "", None)
        if booking is None:
            return
        if kwargs.get("cache_hit"):
            booking.decision.cancel()  # LiteLLM had the answer: no engine saw the request
        else:
            booking.decision.on_complete(**usage(response_obj, streamed=bool(kwargs.get("stream"))))

    async def async_log_failure_event(
        self, kwargs: Mapping[str, Any], response_obj: object, start_time: object, end_time: object
    ) -> None:
        """Release the booking of a request that failed, also in the middle of a stream.

        Args:
            kwargs: LiteLLM's data of the call.
            response_obj: Not used.
            start_time: Not used.
            end_time: Not used.
        """
        del response_obj, start_time, end_time
        self._failed(kwargs.get("litellm_call_id"), kwargs.get("exception"))

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Mapping[str, Any],
        exception: Exception,
        call_type: object,
        fallback_depth: int | None = None,
    ) -> None:
        """Release the booking of an attempt that failed; the proxy logs a failure of the whole request only.

        Args:
            request_data: Arguments of the call.
            exception: The error.
            call_type: Not used.
            fallback_depth: Not used.
        """
        del call_type, fallback_depth
        self._failed(request_data.get("litellm_call_id"), exception)

    # --- how ---

    def _choose(
        self, model: str, deployments: Sequence[dict[str, Any]], messages: list[Any] | None, request: dict[str, Any]
    ) -> dict[str, Any] | str:
        """Book a deployment; a str is the reason why LiteLLM should pick."""
        now = self._clock()
        self._expire(now)
        pool = candidates(deployments, request)
        if not pool:
            return "no-candidates"
        if len({tags(deployment) for deployment in pool.values()}) > 1:
            return "tags"
        for key in self._see(pool, now):
            base = pool[key].get("litellm_params", {}).get("api_base")
            self._bases[key] = base if isinstance(base, str) else None
            try:
                lifetimes.configured(pool[key])
            except ValueError as error:
                _log.warning("deployment %s: %s; it is ignored", key, error)
        call = request.get("litellm_call_id")
        if not isinstance(call, str):
            # Outside the proxy, LiteLLM would draw one after this. The dict is that of this attempt alone.
            call = request["litellm_call_id"] = str(uuid4())
        excluded = tried(request)
        before = self._bookings.pop(call, None)
        if before is not None:  # this attempt replaces one whose end was not reported
            excluded.add(before.decision.key)
            before.decision.cancel()
        asked = self._asked(messages, request)
        asked["model"] = model
        asked["by_load"] = True
        asked["among"] = tuple(pool)
        if (cache_ttl_s := lifetimes.shortest(pool.values(), messages, request)) is not None:
            asked["cache_ttl_s"] = cache_ttl_s
        decision = self._select(asked, excluded)
        self._bookings[call] = _Booking(decision, now + self._deadline_s)
        matched = decision.matched_tokens, decision.prompt_tokens
        _log.debug(
            "%s: %s takes call %s: %s, %d of %d tokens matched", model, decision.key, call, decision.reason, *matched
        )
        return pool[decision.worker]

    def _select(self, asked: RequestArguments, excluded: set[str]) -> Decision[str]:
        """Pick one that this request did not try, or, if it tried all, any: to try again is LiteLLM's decision."""
        if excluded:
            asked["exclude"] = excluded
            try:
                return self.router.select_worker(**asked)
            except NoWorkerAvailable:
                del asked["exclude"]
        return self.router.select_worker(**asked)

    def _asked(self, messages: list[Any] | None, request: Mapping[str, Any]) -> RequestArguments:
        """Collect the routing arguments; an unreadable prompt is left out."""
        prompt: dict[str, object] = {"messages": messages}
        if messages is None:
            prompt = {"prompt": request.get("input")}
        elif len(messages) == 1 and is_prompt_list(content := messages[0].get("content")):
            prompt = {"prompt": content}  # of a text completion
        asked: RequestArguments = {}
        try:
            asked = as_body(request, **prompt)
        except (TypeError, ValueError):
            self.unread += 1
        proxied = request.get("proxy_server_request")
        if isinstance(proxied, dict):
            asked["headers"] = proxied.get("headers")
        session = request.get("litellm_session_id") or metadata(request).get("session_id")
        if isinstance(session, str) and session.isascii():
            asked["session"] = session
        return asked

    def _failed(self, call: str | None, error: object) -> None:
        booking = self._bookings.pop(call or "", None)
        if booking is None:
            return
        if getattr(error, "status_code", None) == _TIMED_OUT:
            booking.decision.on_error(_GATEWAY_TIMEOUT)
        else:
            booking.decision.on_error(error if isinstance(error, BaseException) else _BAD_GATEWAY)

    def _given_up(self, call: str, lived_as: weakref.ref[Any]) -> None:
        booking = self._bookings.get(call)
        if booking is not None and booking.lives_as is lived_as:
            del self._bookings[call]
            booking.decision.cancel()

    def _expire(self, now: float) -> None:
        """Drop bookings past their deadline, which the router counts as abandoned."""
        while (call := next(iter(self._bookings), None)) is not None and self._bookings[call].deadline <= now:
            del self._bookings[call]
            self.expired += 1


@dataclass(slots=True)
class _Booking:
    """A decision, its deadline, and the object that lives as long as the call."""

    decision: Decision[str]
    deadline: float
    lives_as: weakref.ref[Any] | None = None


def _starts(log: weakref.ref[Any], decision: Decision[str], *arguments: object, **named: object) -> None:
    """Stand in for a method of a logging object: report the first token, unless LiteLLM's cache has the answer."""
    answered = log()
    if answered is not None:
        getattr(type(answered), _STARTS)(answered, *arguments, **named)
        if not getattr(answered, "caching_details", None):
            decision.on_first_token()


def _families(callback: CachelbCallback) -> Iterator[Family]:
    """The counters beside those of the router, for a Prometheus registry."""
    reasons = [((reason,), count) for reason, count in sorted(callback.fallbacks.items())]
    text = "Requests that LiteLLM placed itself, by reason."
    yield Family("litellm_fallbacks", "counter", text, "{request}", ("reason",), reasons)
    text = "Requests whose prompt is no JSON."
    yield Family("litellm_unread", "counter", text, "{request}", (), [((), callback.unread)])
    text = "Requests without an outcome after `deadline_s`."
    yield Family("litellm_expired", "counter", text, "{request}", (), [((), callback.expired)])


_classes: dict[type[CachelbCallback], type[CachelbCallback]] = {}


def _hosted(cls: type[CachelbCallback]) -> type[CachelbCallback]:
    """Return the class that LiteLLM takes for one of its own."""
    if cls in _classes:
        return _classes[cls]
    need(cls.__name__, "litellm")
    from litellm.integrations.custom_logger import CustomLogger

    names = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    return _classes.setdefault(cls, type(cls.__name__, (cls, CustomLogger), names))
