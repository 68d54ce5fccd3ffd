"""TRL's GRPO trainer, one optimiser step per line on standard input; prints the seconds of each.

Runs in an environment of its own (TRL from the package index). ``bench/step.py`` starts it and alternates with it.
"""

import argparse
import json
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class OnDemand(TrainerCallback):
    """Waits for a line before each step and prints how long the step took."""

    def on_step_begin(self, args, state, control, **kwargs):
        """Blocks until the other side asks for a step."""
        print(json.dumps({"ready": state.global_step}), flush=True)
        if sys.stdin.readline().strip() != "step":
            sys.exit(0)
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        """Reports the step."""
        print(json.dumps({"seconds": time.perf_counter() - self.start}), flush=True)


def main() -> None:
    """Builds the trainer with the settings on the command line and serves steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--prompt-text", required=True)
    parser.add_argument("--rows-per-pass", type=int, required=True)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--bf16-weights", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    rows = args.prompts * args.n
    config = GRPOConfig(
        output_dir="trl-out",
        use_cpu=True,
        bf16=args.bf16,
        per_device_train_batch_size=args.rows_per_pass,
        gradient_accumulation_steps=rows // args.rows_per_pass,
        num_generations=args.n,
        max_completion_length=args.tokens,
        generation_kwargs={"min_new_tokens": args.tokens},
        temperature=1.0,
        beta=0.001,
        learning_rate=1e-6,
        max_steps=1000,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    dtype = torch.bfloat16 if args.bf16_weights else torch.float32
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(args.model),
        reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": f"{i:03d}{args.prompt_text}"} for i in range(1024)]),
        callbacks=[OnDemand()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
