"""Files of a person that register estimators and losses: ``algorithm.plugins``."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cohort.algorithms.registry import ADVANTAGES, POLICY_LOSSES
from cohort.assemble.options import advantage_options, loss_options
from cohort.assemble.verl import bind_verl_advantage, bind_verl_loss, own_estimator, own_policy_loss
from cohort.config import family
from cohort.config.critic import critic_runs
from cohort.config.schema import Config
from cohort.config.shaping import correction_of
from cohort.errors import UserError
from cohort.verl_api.calls import described

_DONE: dict[str, str] = {}
"""Files that ran in this process, with the digest of their text."""


def settle(config: Config, say: Callable[[str], None]) -> Config:
    """Runs the plug-ins, and judges what only they can say: whether the names exist, and how the loss behaves.

    Returns:
        The config with absolute paths, so that replicas find the files wherever they run.

    Raises:
        UserError: for a file that is missing or does not run, a name that nobody registered, or a loss that does not
            return what it must.
    """
    paths = tuple(os.path.abspath(os.path.expanduser(path)) for path in config.algorithm.plugins)
    for given, path in zip(config.algorithm.plugins, paths, strict=True):
        load_plugin(path, given)
    config = replace(config, algorithm=replace(config.algorithm, plugins=paths))
    family.check_names(config)
    _check_replicas(config)
    _check_estimator(config)
    _check_loss(config, say)
    return config


def _check_estimator(config: Config) -> None:
    name = config.algorithm.adv_estimator
    if function := own_estimator(name):
        reads = bind_verl_advantage(config, function).reads
    else:
        entry = ADVANTAGES[name]
        reads = entry.needs
        advantage_options(config.algorithm, entry.function)
        if entry.group_baseline:
            family.check_siblings(config)
    if "values" in reads and not critic_runs(config):
        raise UserError(f"{family.ESTIMATOR}={name}: it reads the values of a critic; set critic.enable=True")


def _check_loss(config: Config, say: Callable[[str], None]) -> None:
    actor = config.actor_rollout_ref.actor
    mode = actor.policy_loss.loss_mode
    function = own_policy_loss(mode)
    if function is None:
        loss_options(actor, POLICY_LOSSES[mode].function)
        return
    correction = correction_of(config)
    if correction.bypass and (correction.rules or correction.loss == "reinforce"):
        raise UserError(
            f"{family.LOSS}={mode}: a loss with verl's signature averages by itself, so bypass_mode can neither reject "
            "nor weigh its tokens; use algorithm.rollout_correction without bypass_mode"
        )
    if bind_verl_loss(config, function).whole:
        _warn_whole(config, mode, say)


def _check_replicas(config: Config) -> None:
    """Replicas know what a file registers; what a notebook registered is only here."""
    named = {
        family.ESTIMATOR: (config.algorithm.adv_estimator, family.ESTIMATORS),
        family.LOSS: (config.actor_rollout_ref.actor.policy_loss.loss_mode, family.LOSSES),
    }
    for key, (name, built_in) in named.items():
        if config.trainer.n_gpus_per_node > 1 and name not in built_in and not config.algorithm.plugins:
            raise UserError(
                f"{key}={name}: it is registered in this process alone, and trainer.n_gpus_per_node="
                f"{config.trainer.n_gpus_per_node} starts others; put it into a file and name that in algorithm.plugins"
            )


def _warn_whole(config: Config, mode: str, say: Callable[[str], None]) -> None:
    replicas = config.trainer.n_gpus_per_node
    if replicas > 1:
        raise UserError(
            f"{family.LOSS}={mode}: it takes means of its own, which parts of a minibatch cannot, so it cannot be "
            f"shared by trainer.n_gpus_per_node={replicas}; average with agg_loss, or set trainer.n_gpus_per_node=1"
        )
    say(
        f"the loss {mode} takes means of its own, so each minibatch goes through the model in one piece, whatever "
        "ppo_micro_batch_size_per_gpu says; average with agg_loss to save memory"
    )


def load_plugin(path: str, given: str) -> None:
    """Runs a file, once per process as long as its text stays the same.

    Args:
        path: the file.
        given: the path as the person wrote it, for messages.

    Raises:
        UserError: if it is missing or does not run, with the line.
    """
    where = f"algorithm.plugins={given}"
    place = Path(path)
    if not place.is_file():
        raise UserError(f"{where}: no such file")
    text = place.read_text(encoding="utf-8")
    digest = hashlib.sha1(text.encode()).hexdigest()
    if _DONE.get(path) == digest:
        return
    name = f"cohort_plugin_{place.stem}_{hashlib.sha1(path.encode()).hexdigest()[:8]}"
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))  # last, so that a neighbour never shadows an installed module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{where}: expects a Python file, with the ending .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UserError(f"{where} line {error.lineno}: {error.msg}: {(error.text or '').strip()}") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"{where}: {described(error)}") from error
    _DONE[path] = digest
