"""First mistakes with the library, and the exact text of each error."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from importlib import import_module
from typing import Any

import pytest

import cachelb
from cachelb import Adaptive, CacheAware, Health, Pairs, Rendezvous, Router, policies
from cachelb.index import hash_blocks
from cachelb.policies import POLICIES, BuiltinPolicy, Learned, LengthBucket, OverlapCost, Random, Session
from cachelb.testing import ManualClock

NO_PROMPT = (
    "the request has no prompt: give text=, messages=, tokens= or blocks={}; by_load=True picks a worker by load alone"
)
OWNERS = "an option of CacheAware, PrefixHash, Session, KvAware"
OF_CACHE_AWARE = "Router(..., policy=CacheAware(load_factor=...))"
OF_LOAD_FACTOR = f"{OWNERS}: {OF_CACHE_AWARE}"
OF_BREAKER = "an option of Health: Router(..., health=Health(breaker_failures=...))"
LACKS = "Router has no argument"
BY_KEYWORD = "select_worker takes a prompt by keyword: tokens=..., messages=... or text=..."
OTHER_SEED = "blocks= are of another seed: give hash_blocks the same secret=, or the hash_seed as seed="


class Own:
    """A policy of one's own."""

    name, needs = "own", frozenset({"session"})

    def choose(self, _request: object, _fleet: object) -> int:
        return 0


def router(**options: Any) -> Router[str]:
    return Router(["a", "b"], seed=1, **options)


KEYWORDS: list[tuple[Any, dict[str, Any], str]] = [
    (Router, {"polcy": "random"}, "Router has no argument 'polcy'; did you mean 'policy'?"),
    (Router, {"worker": ["a"]}, "Router has no argument 'worker'; did you mean 'workers'?"),
    (Router, {"load_factor": 2.0}, f"load_factor is {OF_LOAD_FACTOR}"),
    (
        Router,
        {"load_facto": 2.0},
        f"Router has no argument 'load_facto'; did you mean load_factor, {OF_LOAD_FACTOR}",
    ),
    (
        Router,
        {"policy": "cache-aware", "load_factr": 2.0},
        f"{LACKS} 'load_factr'; did you mean load_factor, an option of CacheAware: {OF_CACHE_AWARE}",
    ),
    (
        Router,
        {"policy": "rendezvous", "load_factor": 2.0},
        f"load_factor is {OF_LOAD_FACTOR}",
    ),
    (
        Router,
        {"breaker_failures": 2},
        f"breaker_failures is {OF_BREAKER}",
    ),
    (
        Router,
        {"breaker_failure": 2},
        f"{LACKS} 'breaker_failure'; did you mean breaker_failures, {OF_BREAKER}",
    ),
    (
        Router,
        {"booking_ttl_s": 9},
        "booking_ttl_s is an option of Health: Router(..., health=Health(booking_ttl_s=...))",
    ),
    (Router, {"pd_fallback": True}, "pd_fallback is an option of Pairs: Router(..., pairs=Pairs(fallback=...))"),
    (
        Router,
        {"prefill_policy": "random"},
        "prefill_policy is an option of Pairs: Router(..., pairs=Pairs(prefill=...))",
    ),
    (Router, {"policy": Own(), "ttl_s": 8}, "ttl_s is an attribute of the policy: Own.ttl_s = ..."),
    (Router, {"pairs": {"fallback": True}}, "pairs must be Pairs, not dict"),
    (Router, {"pairs": Pairs(transfer_ms=-1)}, "transfer_ms must be a finite number, 0 or more, got -1"),
    (Router, {"health": Health(breaker_failures=-1)}, "breaker_failures must be from 0 to 4294967295, got -1"),
    (
        Router,
        {"policy": Session(), "load_factor": 2.0},
        "load_factor is an option of Session: Router(..., policy=Session(load_factor=...))",
    ),
    (Router, {"policy": Own(), "blok_size": 8}, "Router has no argument 'blok_size'; did you mean 'block_size'?"),
    (
        Router,
        {"policy": Own(), "tau": 8},
        "tau is an option of PrefixCache: Router(..., policy=PrefixCache(tau=...))",
    ),
    (Router, {"strict": True}, "strict is an option of RequestBodies: Router(..., bodies=RequestBodies(strict=...))"),
    (Router, {"policy": "no-such"}, "there is no policy 'no-such'; there are {all}"),
    (
        Adaptive,
        {"load_factor": 2.0},
        f"policy 'adaptive' has no option 'load_factor'; it is {OWNERS}: CacheAware(load_factor=...)",
    ),
    (CacheAware, {"load_facter": 2.0}, "policy 'cache-aware' has no option 'load_facter'; did you mean 'load_factor'?"),
]


@pytest.mark.parametrize(("call", "given", "text"), KEYWORDS, ids=[", ".join(given) for _, given, _ in KEYWORDS])
def test_wrong_keyword_names_the_right_one(call: Any, given: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        call(**given)
    assert str(error.value) == text.format(all=", ".join(map(repr, sorted({*POLICIES, *policies.ALIASES}))))


ALONE: Any = CacheAware
PROMPTS: list[tuple[str, Any, str]] = [
    ("text by position", lambda r: r.select_worker("hi"), "select_worker takes a prompt by keyword: text=..."),
    ("ids by position", lambda r: r.select_worker([1, 2]), BY_KEYWORD),
    (
        "chat by position",
        lambda r: r.select_worker([{"role": "user"}]),
        BY_KEYWORD,
    ),
    ("body by position", lambda r: r.select_worker(b"{}"), BY_KEYWORD),
    ("prompt=", lambda r: r.select_worker(prompt="hi"), "unexpected keyword argument 'prompt'; the prompt is text="),
    (
        "prompt= of a pair",
        lambda r: r.select_pair(prompt="hi"),
        "unexpected keyword argument 'prompt'; the prompt is text=",
    ),
    (
        "input_ids=",
        lambda r: r.select_worker(input_ids=[1]),
        "unexpected keyword argument 'input_ids'; the prompt is tokens=",
    ),
    ("token=", lambda r: r.select_worker(token=[1]), "unexpected keyword argument 'token'; did you mean 'tokens'?"),
    (
        "sesion=",
        lambda r: r.explain(text="hi", sesion="s"),
        "unexpected keyword argument 'sesion'; did you mean 'session'?",
    ),
    ("nothing", lambda r: r.select_worker(), NO_PROMPT.format("")),
    ("None", lambda r: r.select_worker(text=None, tokens=None), NO_PROMPT.format("")),
    ("a session", lambda r: r.select_worker(session="s"), NO_PROMPT.format("")),
    ("a length", lambda r: r.select_worker(prompt_tokens=9, model="m"), NO_PROMPT.format("")),
    ("headers", lambda r: r.select_worker(headers={"x-session-id": "s"}), NO_PROMPT.format("")),
    ("nothing of a pair", lambda r: r.select_pair(), NO_PROMPT.format("")),
    ("nothing of a batch", lambda r: r.select_batch([{"text": "hi"}, {}]), NO_PROMPT.format("")),
    ("nothing to admit", lambda r: cachelb.Admission(r).acquire_nowait(), NO_PROMPT.format("")),
    ("a number as by_load", lambda r: r.select_worker(by_load=1), "by_load must be bool, got int"),
    (
        "a policy, by position",
        lambda r: ALONE().select_worker(["a"], "hi"),
        "select_worker takes a prompt by keyword: text=...",
    ),
    (
        "a policy, prompt=",
        lambda r: ALONE().select_worker(["a"], prompt="hi"),
        "unexpected keyword argument 'prompt'; the prompt is text=",
    ),
    ("a policy, nothing", lambda r: CacheAware().select_worker(["a"]), NO_PROMPT.format("")),
    ("a policy of sessions", lambda r: Rendezvous().select_worker(["a"]), NO_PROMPT.format(", or session=")),
    ("a policy of lengths", lambda r: LengthBucket().select_worker(["a"]), NO_PROMPT.format(", or prompt_tokens=")),
    ("an own policy of sessions", lambda r: router(policy=Own()).select_worker(), NO_PROMPT.format(", or session=")),
]


@pytest.mark.parametrize(("call", "text"), [row[1:] for row in PROMPTS], ids=[row[0] for row in PROMPTS])
def test_missing_or_misnamed_prompt_names_the_keyword_and_books_nothing(call: Any, text: str) -> None:
    one = router()
    with pytest.raises(TypeError) as error:
        call(one)
    assert str(error.value) == text
    assert one.loads() == {"a": 0, "b": 0}


def test_request_without_a_prompt_goes_by_load_where_the_caller_says_so() -> None:
    one = router()
    held = [one.select_worker(by_load=True) for _ in range(4)]
    assert one.loads() == {"a": 2, "b": 2}
    assert held[0].retry().worker != held[0].worker, "a retry is not refused"
    pair = one.select_pair(by_load=True)
    pair.cancel()
    one.reserve("a", prompt_tokens=9).on_complete()
    for policy in (Session(), Rendezvous(), Own()):
        by_session = router(policy=policy)
        by_session.select_worker(session="s").on_complete()
        by_session.select_worker(headers={"x-session-id": "s"}).on_complete()
    LengthBucket().select_worker(["a"], prompt_tokens=9).on_complete()


HASHES: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    ({"hash_seed": 7}, {"seed": 7}, None),
    ({"secret": "known to all gateways"}, {"secret": "known to all gateways"}, None),
    ({"hash_seed": 7, "block_size": 32}, {"seed": 7, "block_size": 32}, None),
    (
        {"hash_seed": 7},
        {"seed": 7, "block_size": 32},
        "blocks= are of blocks of 32 tokens, not 16: hash_blocks(tokens, 16)",
    ),
    ({"hash_seed": 7}, {"seed": 8}, OTHER_SEED),
    ({}, {}, OTHER_SEED),
    ({"secret": "known to all gateways"}, {"secret": "another of the gateways"}, OTHER_SEED),
    (
        {"hash_seed": 7},
        {"seed": 7, "scheme": "eagle"},
        'blocks= are of scheme "eagle", not "chained": hash_blocks(scheme="chained")',
    ),
]


@pytest.mark.parametrize(("options", "made", "text"), HASHES)
def test_hashes_of_another_size_or_seed_are_refused(
    options: dict[str, Any], made: dict[str, Any], text: str | None
) -> None:
    one, hashes = router(**options), hash_blocks(range(200), **made)
    for blocks in (hashes, hashes[:3]):
        if text is None:
            one.select_worker(blocks=blocks).on_complete()
            continue
        with pytest.raises(ValueError, match="blocks= are of") as error:
            one.select_worker(blocks=blocks)
        assert str(error.value) == text
    one.select_worker(blocks=hashes.tolist()).on_complete()  # not known


def test_hashes_of_a_policy_alone_and_of_a_model_are_checked_by_its_own_size() -> None:
    hashes = hash_blocks(range(200), 32)
    CacheAware(block_size=32).select_worker(["a"], blocks=hashes).on_complete()
    with pytest.raises(ValueError, match="blocks of 32 tokens, not 16"):
        CacheAware().select_worker(["a"], blocks=hashes)
    one = router(hash_seed=1337, models={"large": 32})
    one.select_worker(blocks=hashes, model="large").on_complete()
    with pytest.raises(ValueError, match="blocks of 32 tokens, not 16"):
        one.select_worker(blocks=hashes)


def url(worker: str) -> str:
    return worker


CLOCK = ManualClock(1.0)
NAMES = {**vars(policies), "url": url, "CLOCK": CLOCK}
OPTIONS: list[tuple[BuiltinPolicy, str]] = [
    (CacheAware(), "CacheAware()"),
    (CacheAware(load_factor=1.25, index="blocks", ttl_s=None), "CacheAware()"),
    (CacheAware(load_factor=2, seed=3), "CacheAware(load_factor=2, seed=3)"),
    (CacheAware(key=url), "CacheAware(key=url)"),
    (OverlapCost(overlap_score_credit_decay=0.5), "OverlapCost(overlap_score_credit_decay=0.5)"),
    (Session(base="random"), "Session(base='random')"),
    (Session(base=CacheAware(load_factor=3.0), seed=2), "Session(base=CacheAware(load_factor=3.0), seed=2)"),
    (Learned(fallback=Session(base=Random())), "Learned(fallback=Session(base=Random()))"),
    (policies.KvAware(credits={"cpu": 0.5}), "KvAware(credits={'cpu': 0.5})"),
    (policies.EstimatedTtft(prefill=(1, 2, 3)), "EstimatedTtft(prefill=(1, 2, 3))"),
    (policies.QueueOverThroughput(throughput={"a": 2}), "QueueOverThroughput(throughput={'a': 2})"),
]


@pytest.mark.parametrize(("policy", "text"), OPTIONS, ids=[text for _, text in OPTIONS])
def test_repr_of_a_policy_builds_it_again(policy: BuiltinPolicy, text: str) -> None:
    assert repr(policy) == text
    again = eval(text, NAMES)  # noqa: S307 - our own text
    assert (type(again), repr(again)) == (type(policy), text)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_repr_of_every_policy_has_every_number_that_is_not_the_default(policy: Any) -> None:
    given = {name: 0.5 for name, kind, default, _ in policy.keywords().values() if kind == "float" and default != 0.5}
    made: dict[str, float] = {}
    for name, value in given.items():
        try:
            policy(**made, **{name: value})
        except ValueError:  # its range does not hold it
            continue
        made[name] = value
    text = repr(policy(**made))
    assert text == f"{policy.__name__}({', '.join(f'{name}={value}' for name, value in made.items())})"
    assert repr(eval(text, NAMES)) == text  # noqa: S307 - our own text


DROPPED = """
from cachelb import Router
router = Router(["a"])
def drop(end):
    decision = router.select_worker(text="hi")
    end(decision)
drop(lambda decision: decision.on_complete())
drop(lambda decision: decision.on_error(500))
drop(lambda decision: decision.cancel())
drop(lambda decision: decision.__exit__(None, None, None))
router.select_worker(text="hi", dry_run=True)
drop(lambda decision: None)
print(router.stats().endings["abandoned"])
open_at_exit = router.select_worker(text="hi")
"""


@pytest.mark.parametrize("flags", [[], ["-X", "dev"]], ids=["as usual", "development"])
def test_dropped_decision_warns_in_development_mode_alone(flags: list[str]) -> None:
    run = subprocess.run([sys.executable, *flags, "-c", DROPPED], capture_output=True, text=True, check=True)
    assert run.stdout == "1\n"
    if flags:
        assert run.stderr.count("ResourceWarning: decision ") == 2, run.stderr
    else:
        assert run.stderr == ""


def test_policy_alone_matches_texts_and_chats_as_a_router_does() -> None:
    chat = [{"role": "user", "content": "Tell me a story. " * 40}]
    more = [*chat, {"role": "assistant", "content": "Once upon a time"}, {"role": "user", "content": "Go on."}]
    for first, then in (({"text": "x" * 999}, {"text": "x" * 1999}), ({"messages": chat}, {"messages": more})):
        alone, one = CacheAware(seed=1), router(policy="cache-aware")
        found = []
        for select in (partial(alone.select_worker, ["a", "b"]), one.select_worker):
            before = select(**first)
            after = select(**then)
            found.append((after.reason, after.matched_tokens, after.prompt_tokens, after.worker == before.worker))
        assert found[0] == found[1]
        assert found[0][0] == "prefix"
        assert found[0][1] > 100
        alone.validate()


NAMES_OF_THE_PACKAGE = [
    *("Adaptive", "Admission", "CacheAware", "CachelbError", "Decision", "Health", "KvAware", "LeastLoaded"),
    *(
        "NoWorkerAvailable",
        "Overloaded",
        "PairDecision",
        "Pairs",
        "Policy",
        "Rendezvous",
        "RequestBodies",
        "Router",
        "UnknownWorkerError",
    ),
    *("__version__", "index", "policies"),
]


def test_names_of_the_package_are_listed_and_there() -> None:
    code = "import cachelb, sys; print(dir(cachelb), 'cachelb.policies' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"{NAMES_OF_THE_PACKAGE} False\n"
    assert cachelb.__all__ == NAMES_OF_THE_PACKAGE
    for name in NAMES_OF_THE_PACKAGE:
        assert getattr(cachelb, name) is getattr(cachelb, name)
    assert cachelb.policies is policies
    assert all(getattr(cachelb, name) is getattr(policies, name) for name in ("Adaptive", "CacheAware", "KvAware"))


MOVED = {
    "cachelb.bodies": ("BodyReader",),
    "cachelb.errors": ("BodyError", "ConfigError", "SnapshotError", "TraceError"),
    "cachelb.index": ("BlockTracker", "Match", "Namespace", "PrefixMatch", "RadixTree", "hash_blocks", "hash_text"),
}


@pytest.mark.parametrize(("home", "name"), [(home, name) for home, names in MOVED.items() for name in names])
def test_old_name_warns_and_names_the_new_one(home: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=name) as caught:
        old = getattr(cachelb, name)
    assert [(str(each.message), each.filename) for each in caught] == [
        (f"cachelb.{name} has moved to {home}; the old name goes in cachelb 0.5", __file__)
    ]
    assert old is getattr(import_module(home), name)
    assert name not in dir(cachelb)
    if isinstance(old, type):
        assert old.__module__ == home


def test_unknown_name_is_an_attribute_error() -> None:
    for package in ("cachelb", "cachelb.state"):
        with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'BlokTracker'"):
            _ = import_module(package).BlokTracker
