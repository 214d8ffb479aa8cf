"""Checks of a plugin of any kind: it is light, well-formed, described and bounded."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from mt_conformance import trainer
from mt_conformance.host import is_installed
from mt_conformance.launch import Case
from mt_conformance.listing import HEAVY, listing_of
from mt_core.components import Component, ModelFamily
from mt_core.config.base import MtConfig
from mt_core.errors import ConfigError, MtError
from mt_core.plugins.host import Offer, PluginHost

MOST_MILLISECONDS = 1000
"""Processor time that importing a plugin may take. A good one takes 10 to 50; the rest is for slow machines."""

BOUNDS = ("gt", "ge", "lt", "le", "multiple_of")


class BasePluginConformance:
    """Checks of any component. Subclass the class of your kind instead, and name your component.

    ``plugin`` is the module that the entry point names, ``name`` the component, ``options`` are small ones with which it
    is quick. What needs files overrides ``options_in``.
    """

    plugin: ModuleType
    name: str
    options: Mapping[str, Any] = {}
    idle_options: Collection[str] = ()
    """Options that change nothing in this test, such as those that another one switches on."""
    fixed_options: ClassVar[Collection[str]] = ()
    """Options that keep their value in every test of the kind: their work shows elsewhere."""
    kind: str = ""
    """Set by the class of each kind."""

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        """The options; a plugin that reads files writes small ones into ``folder`` first."""
        return self.options

    def launch_cases(self, host: PluginHost, folder: Path) -> Mapping[str, Case]:
        """The runs of this class's one launch, by name; what came of them is the fixture ``mt_launched``."""
        return {}

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """Return what the component does with the options, to be compared with what it does with others: numbers, texts and tensors."""
        pytest.skip("what it does with its options shows in no call of this process")

    # --------------------------------------------------------------------------------------------- what is tested

    def offer(self, host: PluginHost) -> Offer:
        """The component that this class is about. Raises ``AssertionError`` that says why there is none."""
        plugin = host.plugins[-1]
        missing = "" if is_installed(self.plugin.__name__) else not_installed(self.plugin.__name__)
        assert not plugin.error, f"{self.plugin.__name__} does not load: {plugin.error}{missing}"
        offers = {offer.component.name: offer for offer in plugin.offers if offer.kind == self.kind}
        hook = host.kinds[self.kind].hook
        assert self.name in offers, (
            f"{self.plugin.__name__} offers no {self.kind} named {self.name!r}; {hook} offers {sorted(offers) or 'nothing'}."
            f" Set `name` of {type(self).__name__} to one of them, or offer it from {hook}."
        )
        return offers[self.name]

    def component(self, host: PluginHost) -> Component:
        """The component itself."""
        return self.offer(host).component

    def part(self, host: PluginHost, folder: Path) -> trainer.Part:
        """The component with its validated options, and what it is made of."""
        offer, draft = self.offer(host), trainer.Draft({}, host, {})
        options = draft.validate(offer.component.config, self.values_in(host, folder), self.kind)
        parts = None if options is None else trainer.parts_of(draft, offer, options, self.kind)
        assert not draft.faults, f"the options of {type(self).__name__} are not valid: {ConfigError(draft.faults)}"
        return trainer.Part(host.kinds[self.kind], offer, options, parts)

    def values_in(self, host: PluginHost, folder: Path) -> Mapping[str, Any]:
        """Return the values that the config is made from."""
        return {key.replace("-", "_"): value for key, value in self.options_in(folder).items()}

    def config(self, host: PluginHost, folder: Path) -> Any:
        """The validated options."""
        return self.part(host, folder).options

    # ------------------------------------------------------------------------------------------------------ checks

    def test_hooks_and_components_are_those_of_the_contract(self, mt_host: PluginHost) -> None:
        """The plugin loads, offers the component, and offers the same when it is asked again."""
        component = self.component(mt_host)
        hook = mt_host.kinds[self.kind].hook
        names = [each.name for each in getattr(self.plugin, hook)()]
        before = [each.component.name for each in mt_host.plugins[-1].offers if each.kind == self.kind]
        assert names == before, (
            f"{hook} offered {before} at first and {names} when it was called again; a hook returns the same list each"
            " time: build it from constants"
        )
        one_line = component.summary.strip() and "\n" not in component.summary
        assert one_line, (
            f"the summary of {self.name!r} is {component.summary!r}; write one line that says what it is, for --help and"
            " `mt-plugins list`"
        )

    def test_importing_it_takes_milliseconds_and_loads_nothing_heavy(self) -> None:
        """Measured in a separate process. Commands import every plugin, so an import must be fast."""
        seen = listing_of(self.plugin.__name__)
        where = "; ".join(f"{package} by {place}" for package, place in seen.heavy.items())
        assert not seen.heavy, (
            f"importing {self.plugin.__name__} imports {where}. Import it inside `build`, or under `if TYPE_CHECKING:` for"
            f" annotations: none of {', '.join(sorted(HEAVY))} may be loaded until something is built"
        )
        assert not seen.error, f"{self.plugin.__name__} does not load in a process of its own: {seen.error}"
        assert seen.milliseconds <= MOST_MILLISECONDS, (
            f"importing {self.plugin.__name__} takes {seen.milliseconds:,.0f} ms of processor time, and every command pays"
            f" for it; at most {MOST_MILLISECONDS:,} ms are allowed. It loads {', '.join(seen.packages) or 'no package'}:"
            " import what is large, and compute what takes time, inside `build`"
        )

    def test_every_option_says_what_it_is(self, mt_host: PluginHost) -> None:
        """Every option has a description, its line in ``--help``."""
        mute = [
            path for path, field in fields_of(self.component(mt_host).config) if not (field.description or "").strip()
        ]
        assert not mute, (
            f"options of {self.name!r} without a description: {', '.join(mute)}. Give each one, with its unit:"
            f" {mute[0].rpartition('.')[2]}: … = Field(…, description='… (tokens)')"
        )

    def test_every_number_has_bounds(self, mt_host: PluginHost) -> None:
        """Number fields declare bounds, so that a wrong value is an error before anything is loaded."""
        free = [path for path, field in fields_of(self.component(mt_host).config) if is_unbounded(field)]
        assert not free, (
            f"numbers of {self.name!r} without bounds: {', '.join(free)}. Give each what is allowed, one of"
            f" {', '.join(BOUNDS)}: {free[0].rpartition('.')[2]}: … = Field(…, gt=0, description=…)"
        )

    def test_every_option_changes_something(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Another number, switch or choice changes what the component does. ``idle_options`` names those that change nothing here."""
        trainer.require()
        from mt_conformance.variations import options_without_effect

        def effect(options: Mapping[str, Any]) -> Any:
            other = copy.copy(self)
            other.options_in = lambda folder: options  # type: ignore[method-assign]
            return other.effect(mt_host, tmp_path)

        config, options = self.config(mt_host, tmp_path), self.options_in(tmp_path)
        plain = {key.replace("-", "_"): value for key, value in options.items()}
        untried = {*self.idle_options, *self.fixed_options}
        found = options_without_effect(config, plain, effect, (MtError, ValidationError, AssertionError), untried)
        assert not found, (
            f"{self.name!r} does the same to the last bit with {found[0][0]}={found[0][1]!r} as with {getattr(config, found[0][0])!r}"
            + (f" (the same is true of {', '.join(name for name, _ in found[1:])})" if found[1:] else "")
            + ": it ignores the option. Use it; where another option switches it on, set that in `options` of this test, or name it in"
            " `idle_options`"
        )

    def test_help_shows_every_option_on_a_line(self, mt_host: PluginHost) -> None:
        """``mt-train --help`` with this component shows each option on one line, if a run names its kind."""
        trainer.require()
        if self.kind not in mt_host.kinds.keys_of_kinds:
            pytest.skip(f"no run names a {self.kind}: other components do")
        config, page = (
            self.component(mt_host).config,
            listing_of(self.plugin.__name__).helps[f"{self.kind}/{self.name}"],
        )
        assert not page.startswith("error:"), f"--help with {self.kind} {self.name!r} ends in an {page}"
        lines = page.splitlines()
        for name, field in config.model_fields.items():
            flag = f".{name} ".replace("_", "-")
            shown = [line for line in lines if flag in line and (field.description or "") in line]
            assert shown, (
                f"--help has no line with {flag.strip()} and its description {field.description!r}; write the"
                " description as one line, without line breaks"
            )

    def test_a_config_comes_back_from_json_as_it_was(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The config equals itself after a round trip through the plain values of ``run.yaml``."""
        for title, config in self.configs(mt_host, tmp_path):
            plain = config.model_dump(mode="json")
            again = type(config)(**json.loads(json.dumps(plain)))
            differ = [key for key in plain if getattr(again, key) != getattr(config, key)]
            assert not differ, (
                f"{title} comes back from JSON with another {', '.join(differ)}: {getattr(config, differ[0])!r} was written as"
                f" {plain[differ[0]]!r} and read as {getattr(again, differ[0])!r}. A run could not be resumed as it was: let"
                " the field hold what is written (no serializer that changes it)"
            )
            json.dumps(type(config).model_json_schema())

    def configs(self, host: PluginHost, folder: Path) -> Iterator[tuple[str, MtConfig]]:
        """The config of the test, and those of every size of a family."""
        config = self.config(host, folder)
        yield f"the config of {self.name!r}", config
        component = self.component(host)
        if isinstance(component, ModelFamily):
            for size, values in component.variants.items():
                yield f"size {size!r} of {self.name!r}", type(config)(**values)


def not_installed(module: str) -> str:
    """Say what follows where no distribution of the plugin is installed."""
    return (
        f" The distribution of {module} is not installed, so that plugins which it requires are not in the host of its tests; if it"
        " needs one (for a kind that another plugin brings), install it first: pip install -e ."
    )


def fields_of(config: type[MtConfig], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every option by its dotted name, those of configs inside included."""
    for name, field in config.model_fields.items():
        inner = [each for each in _members(field.annotation) if isinstance(each, type) and issubclass(each, MtConfig)]
        yield f"{prefix}{name}", field
        for each in inner:
            yield from fields_of(each, f"{prefix}{name}.")


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def is_unbounded(field: FieldInfo) -> bool:
    """Return whether it is a number that may have any value."""
    marks = [*field.metadata, *(mark for each in _members(field.annotation) for mark in get_args(each)[1:])]
    return any(each in (int, float) for each in _members(field.annotation)) and not any(
        getattr(mark, bound, None) is not None for mark in marks for bound in BOUNDS
    )
