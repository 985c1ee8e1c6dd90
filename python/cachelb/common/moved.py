"""Old import paths, and members of `Router` that have moved; each warns, for one minor version."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import ModuleType
from typing import Any, Final

MOVED: Final = {
    "cachelb.admission_stats": "cachelb.stats.admission",
    "cachelb.certificate": "cachelb_gateway.certificate",
    "cachelb.config": "cachelb_gateway.config",
    "cachelb.descriptions": "cachelb_lab.descriptions",
    "cachelb.discovery": "cachelb_gateway.discovery",
    "cachelb.doctor": "cachelb_gateway.doctor",
    "cachelb.event_stats": "cachelb.stats.events",
    "cachelb.hashes": "cachelb.common.hashes",
    "cachelb.integrations.ext_proc": "cachelb_gateway.ext_proc",
    "cachelb.metrics.page": "cachelb_gateway.page",
    "cachelb.plots": "cachelb_lab.plots",
    "cachelb.records.analysis": "cachelb_lab.analysis",
    "cachelb.records.samples": "cachelb_lab.samples",
    "cachelb.serve": "cachelb_gateway.serve",
    "cachelb.sim": "cachelb_lab.sim",
    "cachelb.table": "cachelb.common.table",
    "cachelb.testing.events": "cachelb_fakes.events",
    "cachelb.testing.fleet": "cachelb_fakes.fleet",
    "cachelb.testing.fleet.__main__": "cachelb_fakes.__main__",
}
_TOP: Final = {
    "cachelb.bodies": ("BodyReader",),
    "cachelb.errors": ("BodyError", "ConfigError", "SnapshotError", "TraceError"),
    "cachelb.index": ("BlockTracker", "Match", "Namespace", "PrefixMatch", "RadixTree", "hash_blocks", "hash_text"),
}
NAMES: Final = {
    **{f"cachelb.{name}": home for home, names in _TOP.items() for name in names},
    "cachelb.events.Relay": "cachelb_gateway.relay",
    "cachelb.events.RelayStats": "cachelb_gateway.relay",
    "cachelb.learned.Samples": "cachelb_lab.samples",
    "cachelb.learned.read_lodestar": "cachelb_lab.lodestar",
    "cachelb.testing.EventPublisher": "cachelb_fakes",
    "cachelb.testing.FakeFleet": "cachelb_fakes",
    "cachelb.testing.FakeWorker": "cachelb_fakes",
    "cachelb.tokenizers.probe_template": "cachelb_lab.probe",
}
MEMBERS: Final = {
    "add_shared_cache": "shared_caches.add",
    "apply_kv_events": "event_sink.apply_events",
    "recent": "records.recent",
    "records_since": "records.since",
    "remove_shared_cache": "shared_caches.remove",
    **{name: f"policy.{name}" for name in ("learned_stats", "save_model", "shadows")},
    **{name: f"load_sink.{name}" for name in ("learn_worker", "reset_cache", "update_health", "update_load")},
    **{name: f"shared_state.{name}" for name in ("restore", "snapshot")},
    "key_of": "event_sink.key_of",
}


def moved_member(router: object, name: str) -> Any:  # noqa: ANN401 - of any member
    """Return a member of `Router` that has moved to a part of it, with a warning; its `__getattr__`."""
    if name not in MEMBERS:
        raise AttributeError(f"'Router' object has no attribute {name!r}", name=name, obj=router)
    _warn(f"Router.{name}", f"Router.{MEMBERS[name]}")
    return attrgetter(MEMBERS[name])(router)


def moved_name(module: str, name: str, *, stacklevel: int = 4) -> object:
    """Return a name that has moved from `module`, with a warning; the `__getattr__` of such a module."""
    old = f"{module}.{name}"
    if old not in NAMES:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(moved(old, NAMES[old], stacklevel), name)


def moved(old: str, new: str, stacklevel: int = 4) -> ModuleType:
    """Import the module `new` in place of `old`, with a warning.

    If its distribution is not installed, the ModuleNotFoundError has the line that installs it.
    """
    from importlib.util import find_spec

    package = new.partition(".")[0]
    if find_spec(package) is None:
        text = f"{old} has moved to {new}: pip install {package.replace('_', '-')}"
        raise ModuleNotFoundError(text, name=package)
    _warn(old, new, stacklevel)
    return import_module(new)


def _warn(old: str, new: str, stacklevel: int = 4) -> None:
    text = f"{old} has moved to {new}; the old name goes in cachelb 0.5"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


class MovedModules:
    """Finds modules by their old paths."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return a spec whose module is the one of the new path; `python -m` runs the new file."""
        old = name
        while old not in MOVED:
            old = old.rpartition(".")[0]
            if not old.startswith("cachelb."):
                return None
        new = MOVED[old] + name.removeprefix(old)
        if name.endswith(".__main__"):
            from importlib.util import find_spec, spec_from_file_location

            found = find_spec(new)
            return None if found is None else spec_from_file_location(name, found.origin)
        loader: Any = MovedModules()
        return ModuleSpec(name, loader, loader_state=new, is_package=True)

    @staticmethod
    def create_module(_spec: ModuleSpec) -> None:
        """Leave an empty module to be replaced."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Put the module of the new path in place of an empty one."""
        spec = module.__spec__
        if spec is not None:
            sys.modules[spec.name] = moved(spec.name, spec.loader_state)
