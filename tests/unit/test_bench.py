"""The bench: what its numbers mean, its page, and a step of Cohort's side at a small size."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import step
from bench.generation import CASES, LONG, Case, compare, lengths_of
from bench.limits import Limit, limit
from bench.model import linear_flops, make_model, make_tokenizer, prompt_texts
from bench.report import Report, render
from bench.timing import Seconds, Spread, Turns
from bench.trl_process import Setting, interpreter


def turns_of(*pairs: tuple[float, float]) -> Turns:
    turns = Turns()
    for ours, theirs in pairs:
        turns.add(Seconds(ours, ours / 2), Seconds(theirs, theirs / 4))
    return turns


def test_ratios_are_taken_turn_by_turn():
    turns = turns_of((1, 2), (2, 10), (4, 4))
    assert turns.ratio == Spread(1, 2, 5)
    assert turns.cpu_ratio == Spread(0.5, 1, 2.5)
    assert turns.our_median == Seconds(2, 1)


def test_the_model_has_five_million_parameters_and_its_flops_are_twice_its_weights():
    parameters = sum(p.numel() for p in make_model().parameters())
    assert 4.5e6 < parameters < 5.5e6
    assert linear_flops(decoder_tokens=1, head_tokens=1) == pytest.approx(2 * parameters, rel=0.01)


def test_sharing_a_prompt_saves_its_computation():
    saved = step.step_flops(shared_prompt=False) - step.step_flops(shared_prompt=True)
    again = step.PROMPTS * (step.N - 1) * step.PROMPT_TOKENS
    assert saved == pytest.approx(5 * linear_flops(decoder_tokens=again, head_tokens=0))


def test_prompts_have_exactly_the_tokens_they_say():
    tokenizer = make_tokenizer()
    texts = prompt_texts(3, 64)
    assert [len(ids) for ids in tokenizer(texts)["input_ids"]] == [64, 64, 64]
    assert len(set(texts)) == 3


def test_uneven_cases_are_mostly_short():
    lengths = lengths_of(next(case for case in CASES if case.name.startswith("uneven")))
    assert sum(length == LONG for length in lengths) == 4
    assert sorted(lengths)[-5] <= 24


def test_generation_alternates_on_answers_of_the_given_lengths():
    case = Case("tiny", 4, (2, 3, 2, 2, 2, 2, 2, 2))
    ((measured, turns),) = compare((case,), rounds=2)
    assert measured is case
    assert len(turns.ours) == len(turns.theirs) == 2


def test_a_step_of_cohort_has_the_size_it_is_compared_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step, "TOKENS", 4)
    monkeypatch.setattr(step, "MOST_PROMPTS", 4)
    work = replace(step.prepare(tmp_path), prompts=2, n=2)
    run = step.build_cohort(work, tmp_path)
    parts: dict[str, list[float]] = {}
    try:
        seconds = step.cohort_step(run, parts)
    finally:
        run.close()
    assert set(parts) == {"generate", "reference", "update", "publish"}
    assert sum(sum(values) for values in parts.values()) <= seconds.wall
    assert run.trainer.reference is not None, "the KL term is on"


def test_limits_are_positive_and_the_threads_are_as_before():
    before = torch.get_num_threads()
    found = limit(torch.float32, 1, repeats=1)
    assert 0 < found.decoding <= found.best
    assert 0 < found.training <= found.best
    assert torch.get_num_threads() == before


def test_trl_of_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COHORT_BENCH_TRL", "some/python")
    assert interpreter() == "some/python"


def test_the_search_for_trls_setting_keeps_the_fastest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step, "has_fast_bfloat16", lambda _: True)

    def seconds(setting: Setting) -> Seconds:
        wall = {"float32": 3.0, "autocast": 2.0, "bfloat16": 4.0}[setting.precision]
        wall += {16: 0.2, 32: 0.1, 128: 0.0}[setting.rows_per_pass] + (0.05 if setting.threads == 2 else 0)
        return Seconds(wall + (0.5 if not setting.calm_malloc else 0), wall)

    assert step.settle_trl(seconds, [1, 2]) == Setting("autocast", 128, 1)


def test_the_page_has_ratios_limits_and_the_load():
    steps = step.Comparison(
        turns=turns_of((10, 20), (10, 30)),
        setting=Setting("float32", 32, 1),
        threads=1,
        tried={"TRL: float32": Seconds(20, 19)},
        parts={"generate": [4, 6]},
        generate=[7, 9],
    )
    page = render(
        Report(
            machine=["two cores"],
            loads=[0.1, 7.0],
            limits={("float32", 1): Limit(80, 70, 90)},
            generation=[(CASES[0], turns_of((1, 2)))],
            generation_threads=1,
            steps=steps,
        )
    )
    assert "| wall, s | 10.00 | 25.00 | 2.00 / 2.50 / 3.00 |" in page
    assert "generate 5.00" in page
    assert "0.1, 7.0" in page
    assert "| float32 | 1 | 80 | 70 | 90 |" in page
