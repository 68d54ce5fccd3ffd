"""Presets, YAML files and ``key=value`` overrides into a Config. The only importer of Hydra."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.config import rules
from cohort.config.build import build, warn
from cohort.config.convert import convert, show
from cohort.config.nearest import nearest_keys, nearest_words
from cohort.config.schema import Config
from cohort.config.tree import flatten, keys, nest, sections, values
from cohort.errors import UserError

PRESETS = Path(__file__).parent / "presets"

BESIDE = ("critic.", "reward_model.", "algorithm.repr_align.", "algorithm.ref_reward_blend.", "algorithm.chord.")
"""Sections whose keys step back where a keyword is the end of several keys."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A config from the command line.

    Attributes:
        config: what the run is told.
        notes: lines for the person: renamed keys, keys without effect.
        preset: the preset or file that it started from.
    """

    config: Config
    notes: tuple[str, ...]
    preset: str


def presets() -> tuple[str, ...]:
    """The names of the presets that come with Cohort."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.yaml")))


def from_arguments(overrides: Sequence[str], *, config_name: str, config_dir: str | None = None) -> Loaded:
    """A Config from a preset and ``key=value`` overrides in Hydra's grammar.

    Args:
        overrides: ``key=value``, ``+key=value``, ``++key=value`` (all the same: the strict build is the
            judge of keys) and ``~key``, which takes the schema's default.
        config_name: a preset, or the path of a YAML file.
        config_dir: a folder with more YAML files; their ``defaults`` may name the presets.

    Raises:
        UserError: in one line, whatever Hydra says.
    """
    flat = compose(overrides, config_name=config_name, config_dir=config_dir)
    named = {_key_of(override) for override in overrides}
    own_file = config_dir is not None or config_name not in presets()
    given = frozenset(name for name in flat if name in named or (own_file and not _is_default(name, flat[name])))
    notes: list[str] = []
    config = build(flat, given=given, note=notes.append)
    rules.require_data(config)
    return Loaded(config=config, notes=tuple(notes), preset=config_name)


def from_keywords(preset: str = "grpo", settings: Mapping[str, Any] | None = None, /, **keywords: Any) -> Config:
    """A Config from a preset and keywords, for scripts and notebooks.

    A keyword is the end of a key, with ``__`` for dots: ``train_batch_size=8, n=4, optim__lr=1e-4``; or a section with
    a mapping: ``rollout={"n": 4}``. Of several keys that end alike, those of parts beside the actor (validation,
    critic, reward model, reward shaping) and those that follow another key step back; if more than one is left, the
    keyword is an error.

    Args:
        preset: a preset, or the path of a YAML file.
        settings: values by dotted or nested key, ours or verl's.
        **keywords: values by the end of a key.

    Raises:
        UserError: as ``build`` does; also for a keyword that is the end of several keys.
    """
    flat = compose([], config_name=preset)
    own = flatten({**(settings or {}), **{_expand(name, value): value for name, value in keywords.items()}})
    return build({**flat, **own}, given=own, note=warn)


def compose(overrides: Sequence[str], *, config_name: str, config_dir: str | None = None) -> dict[str, Any]:
    """What Hydra makes of a preset and overrides, as dotted keys, interpolations resolved. Judges no key."""
    folder, name = _find(config_name, config_dir)
    # Imported here: Hydra takes a third of a second, and --help needs none of it.
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    hydras = {_key_of(word): word.partition("=")[2] for word in overrides if _key_of(word).startswith("hydra.")}
    words = [_with_presets(folder), *(_readable(word) for word in overrides if _key_of(word) not in hydras)]
    active = GlobalHydra.instance().hydra  # a notebook may be inside a Hydra application of its own
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base="1.3"):
            composed = hydra_compose(name, overrides=words)
        tree = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    except (HydraException, OmegaConfBaseException) as problem:
        raise UserError(_one_line(problem, overrides, config_name)) from None
    except YAMLError as problem:
        raise UserError(f"{config_name}: not a YAML file: {' '.join(str(problem).split())}") from None
    finally:
        GlobalHydra.instance().hydra = active
    if not isinstance(tree, dict):
        raise UserError(f"{config_name}: expects keys and values, as in {PRESETS.name}/grpo.yaml")
    return {**flatten({str(key): value for key, value in tree.items()}), **hydras}


def read_yaml(path: str | Path) -> Config:
    """The Config that ``to_yaml`` wrote, for example a run's ``config.yaml``.

    Raises:
        UserError: if the file is missing or is no config.
    """
    flat = compose([], config_name=str(path))
    return build(flat, given=())


def to_yaml(config: Config) -> str:
    """The whole config as YAML, every default written out; ``read_yaml`` gives the same config back."""
    import yaml

    return yaml.safe_dump(nest(values(config)), sort_keys=False, allow_unicode=True)


def _is_default(name: str, value: Any) -> bool:
    key = keys().get(name)
    return key is not None and (value is None or convert(name, value, key.hint) == key.default)


def _find(config_name: str, config_dir: str | None) -> tuple[Path, str]:
    """The folder and the stem of a preset, of a YAML file, or of a file in ``config_dir``."""
    stem = re.sub(r"\.ya?ml$", "", config_name)
    candidates = [Path(config_dir) / stem] if config_dir else []
    candidates += [PRESETS / stem] if config_name == stem and stem in presets() else [Path(stem)]
    for candidate in candidates:
        if candidate.with_name(candidate.name + ".yaml").is_file():
            return candidate.parent.resolve(), candidate.name
    close = nearest_words(config_name, presets(), most=1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    where = f" in {config_dir}" if config_dir else ""
    raise UserError(
        f"--config-name={show(config_name)}: no such YAML file{where}, and no preset{guess}; "
        f"presets: {', '.join(presets())}"
    )


def _with_presets(folder: Path) -> str:
    """An override of Hydra's own that lets a user's file name the presets in its defaults."""
    places = [] if folder == PRESETS.resolve() else [f'"file://{PRESETS}"']
    return f"hydra.searchpath=[{','.join(places)}]"


_OVERRIDE = re.compile(r"^(\+\+|\+|~)?([^=]*)(?:=(.*))?$", re.DOTALL)


def _key_of(override: str) -> str:
    found = _OVERRIDE.match(override)
    return found.group(2).strip() if found else ""


def _readable(override: str) -> str:
    """The override as Hydra should read it: any key may be set, and plain text needs no quotes.

    Hydra refuses unknown keys without ``+``, which would hide our own judgement, and letters outside its grammar
    (``~/data``, ``a=b``, accents). A value that it cannot parse and that is no list, mapping or quotation is text.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    found = _OVERRIDE.match(override)
    if not found or not found.group(2) or (found.group(3) is None and found.group(1) != "~"):
        raise UserError(f"{show(override)}: expects key=value, for example data.train_batch_size=64")
    mark, key, value = found.groups()
    if not re.fullmatch(r"[\w.@/:-]+", key.strip()):
        raise UserError(f"{show(override)}: {show(key)} is no key; expects key=value without spaces around the =")
    if mark == "~":
        return override
    word = f"++{key}={value}"
    try:
        OverridesParser.create().parse_override(word)
    except HydraException:
        if value[:1] in "[{'\"":
            raise UserError(
                f"{show(override)}: this list, mapping or quotation is not well formed; "
                "lists are [a,b], mappings {a: 1}, and text with signs goes in quotes"
            ) from None
        # Hydra takes a backslash for itself, unless it stands before a quote or at the end.
        quoted = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
        return f"++{key}='{quoted}'"
    return word


def _one_line(problem: Exception, overrides: Sequence[str], config_name: str) -> str:
    """Hydra's message as one line of ours."""
    text = " ".join(line.strip() for line in str(problem).splitlines() if "hydra.cc" not in line)
    blamed = [word for word in overrides if word in text] or [word for word in overrides if _key_of(word) in text]
    first = show(blamed[0] if blamed else overrides[0]) if overrides else config_name
    if "Ambiguous value" in text or "sweep" in text.lower():
        return (
            f"{first}: a comma means several values; write a list as {_key_of(first)}=[a,b], or put the text in quotes"
        )
    if "Could not delete" in text:
        close = nearest_keys(_key_of(blamed[0]) if blamed else "", tuple(keys()))
        guess = f"did you mean ~{close[0]}?" if close else "cohort train --keys lists all"
        return f"{first}: there is no such key to take away; {guess}"
    if "Interpolation key" in text or "InterpolationKeyError" in type(problem).__name__:
        found = re.search(r"'([^']+)'", text)
        close = nearest_keys(found.group(1), tuple(keys())) if found else []
        guess = f"; did you mean ${{{close[0]}}}?" if close else "; name a key that exists"
        return f"{first}: ${{{found.group(1) if found else ''}}} names no key{guess}"
    return f"{first}: Hydra cannot read this: {re.split(r' full_key:|  ?Config search path', text)[0]}"


def _expand(name: str, value: Any) -> str:
    """The dotted key that a keyword means."""
    dotted = name.replace("__", ".")
    legal = [*keys(), *(sections() if isinstance(value, Mapping) else ())]
    if "." in name or dotted in legal or dotted in sections():
        return dotted
    ending = [key for key in legal if key.endswith("." + dotted)]
    aside = [key for key in ending if ".val_kwargs." in key or key.startswith(BESIDE)]
    main = [key for key in ending if key not in aside and (key not in keys() or keys()[key].same_as is None)]
    ending = main or ending
    if len(ending) > 1:
        examples = ", ".join(key.replace(".", "__") for key in ending)
        raise UserError(f"{name}={show(value)}: {name} is the end of {len(ending)} keys; say which: {examples}")
    return ending[0] if ending else dotted
