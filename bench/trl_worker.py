"""TRL's GRPO trainer, one optimiser step per line on standard input; answers with the seconds of each.

Runs in an environment of its own (TRL from the package index). ``bench/trl_process.py`` starts it.
"""

import argparse
import json
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def say(**message):
    """One line to the other side."""
    print("bench:" + json.dumps(message), flush=True)


class OnDemand(TrainerCallback):
    """Waits for a line before each step and tells how long the step took."""

    def on_step_begin(self, args, state, control, **kwargs):
        """Blocks until the other side asks for a step."""
        say(ready=state.global_step)
        if sys.stdin.readline().strip() != "step":
            sys.exit(0)
        self.start = time.perf_counter(), time.process_time()

    def on_step_end(self, args, state, control, **kwargs):
        """Reports the step."""
        wall, cpu = self.start
        say(seconds=time.perf_counter() - wall, cpu=time.process_time() - cpu)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Reports what TRL logged about the step."""
        say(logs={name: value for name, value in (logs or {}).items() if isinstance(value, float | int)})


class Timed(GRPOTrainer):
    """The trainer, with the seconds of generation told apart."""

    def _generate(self, *args, **kwargs):
        start = time.perf_counter()
        result = super()._generate(*args, **kwargs)
        say(generate=time.perf_counter() - start)
        return result


def reward(completions, **_):
    """Different words in each answer."""
    return [float(len(set(text.split()))) for text in completions]


def arguments():
    """The settings on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--prompts-file", required=True)
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--rows-per-pass", type=int, required=True)
    parser.add_argument("--precision", choices=["float32", "autocast", "bfloat16"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    """Builds the trainer and serves steps."""
    args = arguments()
    torch.set_num_threads(args.threads)
    rows = args.prompts * args.n
    config = GRPOConfig(
        output_dir=args.output,
        use_cpu=True,
        bf16=args.precision == "autocast",
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
        logging_steps=1,
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    dtype = torch.bfloat16 if args.precision == "bfloat16" else torch.float32
    with open(args.prompts_file, encoding="utf-8") as lines:
        prompts = json.load(lines)
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype),
        processing_class=AutoTokenizer.from_pretrained(args.model),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        callbacks=[OnDemand()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
