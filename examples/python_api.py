"""Training from a script: a model, a list of dicts, a reward, and settings by keyword."""

import cohort

rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(300, 316) for b in range(200, 204)]

run = cohort.train(
    "starter",  # or the folder or hub name of a model
    rows[:-8],
    reward=lambda text, answer: float(text.endswith(f"#### {answer}")),
    val_data=rows[-8:],
    n=4,  # answers per prompt
    train_batch_size=8,  # prompts per step
    ppo_mini_batch_size=8,  # prompts per optimiser step
    max_response_length=40,
    lr=2e-4,
    use_kl_loss=False,
    total_training_steps=2,
    test_freq=2,  # validate before training, and every so many steps
)
print(run.folder, run.outcome.last.metrics["val-core/unknown/reward/mean@1"])
