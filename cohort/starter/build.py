"""The starter model's folder: built on first use, then found in the cache.

The folder is an ordinary Hugging Face one (``AutoModelForCausalLM`` and ``AutoTokenizer`` load it) with a
card, ``starter.json``, beside the weights. It stands under ``$COHORT_CACHE``, else ``$XDG_CACHE_HOME/cohort``,
else ``~/.cache/cohort``; its name ends in a hash of everything that determines the weights, so a changed
recipe, library or CPU builds another one and never meets an old one.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

import tokenizers
import torch
import transformers

from cohort.data.tasks import arithmetic
from cohort.errors import UserError
from cohort.models.quiet import no_progress_bars
from cohort.rewards import arithmetic as arithmetic_reward
from cohort.starter import model as model_module
from cohort.starter import supervised
from cohort.starter import tokenizer as tokenizer_module
from cohort.starter.supervised import Progress, Recipe, Starter, measure, single_thread, train

CARD = "starter.json"
CARD_PROBLEMS = 800
"""Held-out problems behind the accuracies on the card."""
SOURCES: tuple[ModuleType, ...] = (arithmetic, arithmetic_reward, model_module, supervised, tokenizer_module)


def starter_model(progress: Progress | None = None, *, recipe: Recipe | None = None) -> Path:
    """The folder of the starter model; trains it first where the cache does not hold it.

    Args:
        progress: receives a line of text now and then while the model is trained; never called on a hit.
        recipe: another recipe than the committed one, for experiments and tests.

    Raises:
        UserError: if the cache folder cannot be written.
        RuntimeError: if training does not reach its target.
    """
    say = progress or (lambda line: None)
    recipe = recipe or Recipe()
    folder = cache_folder() / f"starter-{fingerprint(recipe)}"
    if (folder / CARD).is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".starter-", dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"cannot write the starter model to {folder.parent} ({error.strerror}); set COHORT_CACHE to another folder"
        ) from error
    try:
        say(f"starter model: training it, once, for {folder}")
        save(train(recipe, say), recipe, draft)
        publish(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    say(f"starter model: {describe(folder)}")
    return folder


def cache_folder() -> Path:
    """Where Cohort keeps what it can make again."""
    if own := os.environ.get("COHORT_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "cohort"


def fingerprint(recipe: Recipe) -> str:
    """A hash of everything that determines the weights: recipe, code, libraries, kind of CPU."""
    parts = [
        json.dumps(asdict(recipe), sort_keys=True),
        *(inspect.getsource(module) for module in SOURCES),
        torch.__version__,
        transformers.__version__,
        tokenizers.__version__,
        torch.backends.cpu.get_cpu_capability(),
    ]
    return blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def save(starter: Starter, recipe: Recipe, folder: Path) -> None:
    """Writes weights, tokenizer and card. The card's accuracies are those of held-out problems."""
    held_out = arithmetic.rows("test", CARD_PROBLEMS, recipe.seed)
    with single_thread():
        sampled = measure(starter.model, starter.tokenizer, held_out, seed=recipe.seed)
        greedy = measure(starter.model, starter.tokenizer, held_out, seed=recipe.seed, greedy=True)
    with no_progress_bars():
        starter.model.save_pretrained(folder)
    starter.tokenizer.save_pretrained(folder)
    card = {
        "sampled_accuracy": sampled.right,
        "greedy_accuracy": greedy.right,
        "parsed": sampled.parsed,
        "problems": CARD_PROBLEMS,
        "steps": starter.steps,
        "seconds": round(starter.seconds, 1),
        "parameters": starter.model.num_parameters(),
        "recipe": asdict(recipe),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    (folder / CARD).write_text(json.dumps(card, indent=2) + "\n")


def publish(draft: Path, folder: Path) -> None:
    """Renames ``draft`` to ``folder`` in one go. Where another process was first, its folder stands."""
    draft.chmod(0o755)  # mkdtemp makes it private
    try:
        draft.rename(folder)
    except OSError:
        if not (folder / CARD).is_file():
            raise


def describe(folder: Path) -> str:
    """One line about a built starter model, from its card."""
    card = json.loads((folder / CARD).read_text())
    return (
        f"{card['parameters']:,} parameters, {card['steps']} steps in {card['seconds']:.0f} s; "
        f"held-out answers right: {card['sampled_accuracy']:.0%} sampled, {card['greedy_accuracy']:.0%} greedy; "
        f"{card['parsed']:.1%} parse and end"
    )
