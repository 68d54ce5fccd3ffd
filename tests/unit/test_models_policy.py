"""The policy's contract: ratio 1, skipped steps, exact resume, folders, references."""

import copy
import inspect
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cohort.algorithms.registry import POLICY_LOSSES, TokenLoss
from cohort.errors import UserError
from cohort.metrics import read
from cohort.models.build import add_lora, load_model, trainable
from cohort.models.layout import Layout
from cohort.models.micro import Budget
from cohort.models.objective import Objective
from cohort.models.optim import OptimSettings
from cohort.models.policy import LocalPolicy
from cohort.models.reference import AdapterOff, LocalReference
from tests.batches import UNEVEN, make_batch, make_experience
from tests.tiny import tiny_model

VANILLA = Objective(policy_loss=POLICY_LOSSES["vanilla"].function)


def make_policy(model=None, *, objective=VANILLA, optim=None, **settings):
    return LocalPolicy(model or tiny_model(), objective=objective, optim=optim or OptimSettings(lr=1e-3), **settings)


def lora_model(seed=1, **settings):
    model = add_lora(tiny_model(**settings), rank=2, alpha=4)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in trainable(model):
        if "lora_B" in name:
            parameter.data.normal_(std=0.3, generator=generator)
    return model


def snapshot(policy):
    return copy.deepcopy([p.detach() for p in policy.model.parameters()]), copy.deepcopy(policy.state())


def assert_same(x, y):
    """Bit-equal, however deeply nested."""
    if isinstance(x, torch.Tensor):
        assert torch.equal(x, y)
    elif isinstance(x, dict):
        assert x.keys() == y.keys()
        for key in x:
            assert_same(x[key], y[key])
    elif isinstance(x, list | tuple):
        for a, b in zip(x, y, strict=True):
            assert_same(a, b)
    else:
        assert x == y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_single_update_has_ratio_exactly_one(dtype):
    policy = make_policy(budget=Budget(max_rows=3), compute_dtype=dtype)
    experience = make_experience(make_batch(UNEVEN), old=False)
    seen = read(policy.update(experience).metrics)
    assert seen["actor/pg_clipfrac"] == 0
    assert seen["actor/pg_clipfrac_lower"] == 0
    assert seen["actor/ppo_kl"] == 0
    mean_advantage = float((experience.advantages * experience.batch.mask).sum() / experience.batch.mask.sum())
    assert seen["actor/pg_loss"] == pytest.approx(-mean_advantage, rel=1e-5)


def test_old_log_probs_of_the_same_weights_give_a_ratio_within_rounding():
    """The first of several minibatches: computed in other micro-batches than the update's."""
    policy = make_policy(budget=Budget(max_rows=2), log_prob_budget=Budget(max_tokens=100))
    batch = make_batch(UNEVEN)
    old = policy.log_probs(batch).log_probs
    update = policy.update(type(make_experience(batch))(batch=batch, advantages=batch.mask, old_log_probs=old))
    assert (update.stats.log_probs - old).abs().max() < 1e-5
    assert read(update.metrics)["actor/pg_clipfrac"] == 0


def test_stats_are_in_the_order_of_the_rows():
    policy = make_policy(budget=Budget(max_tokens=30))
    batch = make_batch(UNEVEN)
    expected = policy.log_probs(batch, entropy=True)
    stats = policy.update(make_experience(batch)).stats
    assert (stats.log_probs - expected.log_probs).abs().max() < 1e-5
    assert (stats.entropy - expected.entropy).abs().max() < 1e-5
    assert not stats.log_probs.requires_grad
    assert policy.log_probs(batch).entropy is None


def test_an_update_reports_what_it_did():
    objective = Objective(policy_loss=POLICY_LOSSES["vanilla"].function, kl_coef=0.1, entropy_coeff=0.01)
    policy = make_policy(objective=objective)
    seen = read(policy.update(make_experience(make_batch(UNEVEN))).metrics)
    total = seen["actor/pg_loss"] - 0.01 * seen["actor/entropy_loss"] + 0.1 * seen["actor/kl_loss"]
    assert seen["actor/loss"] == pytest.approx(total, rel=1e-6)
    assert seen["actor/entropy"] == pytest.approx(seen["actor/entropy_loss"], rel=1e-6)  # token-mean both
    assert seen["actor/kl_coef"] == 0.1
    assert seen["actor/lr"] == 1e-3
    assert seen["actor/grad_norm"] > 0
    assert seen["actor/weights_changed_share"] > 0.5
    assert seen["actor/skipped_updates"] == 0


def test_learning_moves_log_probs_where_advantages_point():
    policy = make_policy()
    batch = make_batch([(4, [6, 6])])
    advantages = batch.mask * torch.tensor([[1.0], [-1.0]])
    before = policy.log_probs(batch).log_probs
    for _ in range(3):
        policy.update(type(make_experience(batch))(batch=batch, advantages=advantages))
    change = (policy.log_probs(batch).log_probs - before).sum(1)
    assert change[0] > 0 > change[1]


@pytest.mark.parametrize("poison", ["advantage", "log_prob", "infinite_loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(poison):
    calls = []

    def loss(log_probs, old_log_probs, advantages, mask):
        calls.append(1)
        if poison == "infinite_loss" and len(calls) > 1:
            return TokenLoss(log_probs * mask + math.inf * mask, {})
        if poison == "gradient" and len(calls) > 1:
            return TokenLoss((log_probs - log_probs.detach()).abs().sqrt() * mask, {})  # value 0, slope infinite
        return TokenLoss(-advantages * log_probs, {})

    policy = make_policy(objective=Objective(policy_loss=loss))
    experience = make_experience(make_batch(UNEVEN))
    policy.update(experience)  # so that the optimiser has moments to keep
    before = snapshot(policy)
    if poison == "advantage":
        experience.advantages[5, 2] = math.nan
    if poison == "log_prob":
        policy.model.model.embed_tokens.weight.data[int(experience.batch.response_ids[0, 0])] = math.nan
        before = snapshot(policy)
    update = policy.update(experience)
    after = snapshot(policy)
    seen = read(update.metrics)
    assert seen["actor/skipped_updates"] == 1
    assert seen["actor/weights_changed_share"] == 0 or poison == "log_prob"  # NaN differs from itself
    assert update.warning.startswith("update skipped: ")
    if poison == "advantage":
        assert "advantages of row 5" in update.warning
    if poison == "log_prob":
        assert "log_probs of row 0" in update.warning
    else:
        assert_same(before, after)
    clean = make_experience(make_batch(UNEVEN))
    if poison == "advantage":
        assert read(policy.update(clean).metrics)["actor/skipped_updates"] == 0


def test_no_row_with_a_token_is_a_step_without_a_gradient():
    policy = make_policy(optim=OptimSettings(lr=1e-3, weight_decay=0.0))
    before = snapshot(policy)[0]
    update = policy.update(make_experience(make_batch([(3, [(0, 2)])])))
    assert read(update.metrics)["actor/grad_norm"] == 0
    assert_same(before, snapshot(policy)[0])
    nothing = make_experience(make_batch([(3, [2])])).select(torch.tensor([], dtype=torch.long))
    assert policy.update(nothing).stats.log_probs.shape == (0, 2)


def test_gradients_are_clipped_by_their_global_norm():
    sgd = OptimSettings(lr=1.0, optimizer="SGD", weight_decay=0.0, clip_grad=0.5)
    policy = make_policy(optim=sgd)
    before = snapshot(policy)[0]
    norm = read(policy.update(make_experience(make_batch(UNEVEN))).metrics)["actor/grad_norm"]
    moved = torch.stack([(x - y).norm() for x, y in zip(before, snapshot(policy)[0], strict=True)]).norm()
    assert norm > 0.5
    assert moved == pytest.approx(0.5, rel=1e-3)


def test_the_learning_rate_belongs_to_the_training_step():
    policy = make_policy(optim=OptimSettings(lr=1.0, schedule="cosine", warmup_steps=2, total_steps=6, min_ratio=0.1))
    rates = []
    for _ in range(7):
        rates.append(policy.optimizer.lr)
        policy.advance()
    assert rates[:3] == [0.0, 0.5, 1.0]
    assert rates[4] == pytest.approx(0.55)
    assert rates[6] == pytest.approx(0.1)


@pytest.mark.parametrize("lora", [False, True])
def test_resuming_is_bit_exact(lora, tmp_path):
    build = lora_model if lora else tiny_model
    experience = make_experience(make_batch(UNEVEN))
    optim = OptimSettings(lr=1e-2, warmup_steps=3)
    straight = make_policy(build(), optim=optim)
    for _ in range(3):
        straight.update(experience)
        straight.advance()
    torch.save(straight.state(), tmp_path / "state.pt")
    resumed = make_policy(build(), optim=optim)
    resumed.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for policy in (straight, resumed):
        policy.update(experience)
        policy.advance()
    assert_same(snapshot(straight), snapshot(resumed))
    assert straight.optimizer.lr == resumed.optimizer.lr


def test_a_checkpoint_of_another_model_is_refused():
    state = make_policy(tiny_model(num_hidden_layers=1)).state()
    with pytest.raises(UserError, match="not those of this model"):
        make_policy().load_state(state)


@pytest.mark.parametrize("architecture", ["qwen3", "gpt2", "qwen3_moe"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_saved_folder_loads_with_the_same_log_probs(architecture, tied, tokenizer, tmp_path):
    policy = make_policy(tiny_model(architecture, tie_word_embeddings=tied), tokenizer=tokenizer)
    batch = make_batch(UNEVEN)
    policy.update(make_experience(batch))
    expected = policy.log_probs(batch).log_probs
    policy.save(tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert loaded.dtype == torch.float32
    assert torch.equal(LocalReference(loaded).log_probs(batch).log_probs, expected)
    assert AutoTokenizer.from_pretrained(tmp_path / "hf").encode("a b") == tokenizer.encode("a b")


def test_a_saved_lora_folder_is_merged_and_has_the_adapter(tokenizer, tmp_path):
    from peft import PeftModel

    policy, batch = make_policy(lora_model(), tokenizer=tokenizer), make_batch(UNEVEN)
    expected = policy.log_probs(batch).log_probs
    policy.save(tmp_path / "hf")
    merged = load_model(tmp_path / "hf", device="cpu")
    assert (LocalReference(merged).log_probs(batch).log_probs - expected).abs().max() < 1e-4
    adapted = PeftModel.from_pretrained(tiny_model(), tmp_path / "hf" / "adapter").eval()
    assert (make_policy(adapted_trainable(adapted)).log_probs(batch).log_probs - expected).abs().max() < 1e-5
    assert (policy.log_probs(batch).log_probs == expected).all()  # saving changed nothing


def adapted_trainable(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_weights_have_every_name_of_a_state_dict(tied):
    model = tiny_model(tie_word_embeddings=tied)
    weights = dict(make_policy(model).weights())
    assert weights.keys() == model.state_dict().keys()
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= weights.keys()


def test_lora_weights_are_merged_under_their_plain_names():
    policy, plain = make_policy(lora_model()), tiny_model()
    weights = dict(policy.weights())
    assert weights.keys() == plain.state_dict().keys()
    plain.load_state_dict(weights)
    batch = make_batch(UNEVEN)
    difference = LocalReference(plain).log_probs(batch).log_probs - policy.log_probs(batch).log_probs
    assert difference.abs().max() < 1e-4


def test_a_lora_reference_is_the_actor_with_its_adapters_off():
    policy, batch = make_policy(lora_model(), temperature=0.7), make_batch(UNEVEN)
    reference = AdapterOff(policy)
    plain = LocalReference(tiny_model(), temperature=0.7).log_probs(batch).log_probs
    assert (policy.log_probs(batch).log_probs - plain).abs().max() > 1e-3
    assert torch.equal(reference.log_probs(batch).log_probs, plain)
    policy.update(make_experience(batch))
    assert torch.equal(reference.log_probs(batch).log_probs, plain)
    assert (policy.log_probs(batch).log_probs - plain).abs().max() > 1e-3


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("lora", [False, True])
def test_bfloat16_compute_learns_in_float32(lora, checkpointing):
    policy = make_policy(
        lora_model() if lora else tiny_model(),
        compute_dtype=torch.bfloat16,
        layout=Layout(checkpointing=checkpointing),
        objective=Objective(policy_loss=POLICY_LOSSES["vanilla"].function, kl_coef=0.1),
    )
    batch = make_batch(UNEVEN)
    exact = make_policy(lora_model() if lora else tiny_model()).log_probs(batch).log_probs
    stats = policy.update(make_experience(batch, old=False)).stats
    assert 0 < (stats.log_probs - exact).abs().max() < 0.5
    assert stats.log_probs.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in policy.model.parameters())
    cast = LocalReference(tiny_model(), compute_dtype=torch.bfloat16)
    if not lora:
        fresh = make_policy(compute_dtype=torch.bfloat16).log_probs(batch).log_probs
        assert torch.equal(cast.log_probs(batch).log_probs, fresh)


def test_the_reference_is_frozen():
    model = tiny_model()
    LocalReference(model)
    assert not any(p.requires_grad for p in model.parameters())


def test_a_policy_in_training_mode_is_refused():
    with pytest.raises(ValueError, match="eval mode"):
        make_policy(tiny_model().train())


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(UserError, match="temperature=0"):
        make_policy(temperature=0)


def test_the_objective_says_what_it_misses():
    batch = make_batch([(3, [2])])
    experience = type(make_experience(batch))(batch=batch, advantages=batch.mask)
    for objective, message in [
        (Objective(policy_loss=POLICY_LOSSES["vanilla"].function, kl_coef=0.1), "reference's log-probs"),
        (Objective(policy_loss=POLICY_LOSSES["vanilla"].function, needs=("values",)), "needs 'values'"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_policy(objective=objective).update(experience)


def test_a_loss_gets_the_extras_it_needs():
    def weighted(log_probs, old_log_probs, advantages, mask, *, row_weight):
        return TokenLoss(-advantages * log_probs * row_weight[:, None], {"weight": row_weight[:, None].expand_as(mask)})

    batch = make_batch([(3, [2, 2])])
    experience = type(make_experience(batch))(
        batch=batch, advantages=batch.mask, extras={"row_weight": torch.tensor([1.0, 3.0])}
    )
    policy = make_policy(objective=Objective(policy_loss=weighted, needs=("row_weight",)), budget=Budget(max_rows=1))
    assert read(policy.update(experience).metrics)["actor/weight"] == 2


def test_unknown_optimisers_are_refused():
    with pytest.raises(UserError, match="SGDW is not one of AdamW, SGD"):
        make_policy(optim=OptimSettings(optimizer="SGDW"))


def test_the_loss_is_two_calls_below_the_update():
    names = []

    def loss(log_probs, old_log_probs, advantages, mask):
        names.extend(frame.function for frame in inspect.stack()[:4])
        return TokenLoss(-advantages * log_probs, {})

    make_policy(objective=Objective(policy_loss=loss)).update(make_experience(make_batch([(3, [2])])))
    assert names[:3] == ["loss", "__call__", "update"]


def test_given_old_log_probs_make_the_ratio():
    policy, batch = make_policy(), make_batch([(3, [2, 2])])
    old = policy.log_probs(batch).log_probs - 0.5 * batch.mask
    update = policy.update(type(make_experience(batch))(batch=batch, advantages=batch.mask, old_log_probs=old))
    seen = read(update.metrics)
    assert seen["actor/pg_clipfrac"] == 1
    assert seen["actor/ppo_kl"] == pytest.approx(-0.5, rel=1e-4)
    assert seen["actor/pg_loss"] == pytest.approx(-1.2, rel=1e-5)
    assert seen["actor/grad_norm"] == 0
