"""What the pages say about keys is what config/ says."""

import re
from fnmatch import fnmatchcase

from cohort.config.tree import keys, sections
from cohort.config.verl import COHORT_ONLY, DEVIATIONS, INERT, REFUSED, RENAMED
from tests.pages import GENERATED, PAGES, ROOT

PAGE = (ROOT / "docs" / "coming_from_verl.md").read_text(encoding="utf-8")
KEY = re.compile(
    r"(?<![\w./-])((?:data|actor_rollout_ref|algorithm|reward|reward_model|custom_reward_function|trainer)\.[a-z_]+(?:\.[a-z_]+)*)(?=[=`\s,:)}])"
)


def test_every_deviation_of_a_default_is_listed():
    table = PAGE[PAGE.index("## Defaults that differ") : PAGE.index("## Behaviour that differs")]
    assert [key for key in DEVIATIONS if f"`{key}`" not in table] == []


def test_the_page_says_where_every_key_of_our_own_is_listed():
    generated = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    table = generated[generated.index("Keys that only Cohort has") :]
    assert "config.md#keys-that-only-cohort-has" in PAGE
    assert [key for key in COHORT_ONLY if f"`{key}`" not in table] == []


def test_every_key_on_a_page_exists():
    known = {*keys(), *sections(), *RENAMED}
    patterns = (*INERT, *REFUSED)
    no_keys = {"data.train_batchsize", "data.md", "reward.py"}
    for page in PAGES:
        if page == GENERATED:
            continue
        for key in set(KEY.findall(page.read_text(encoding="utf-8"))) - known - no_keys:
            assert any(fnmatchcase(key, pattern) for pattern in patterns), f"{page.name}: {key}"
