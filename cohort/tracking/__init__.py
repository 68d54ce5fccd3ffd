"""Where a run's numbers and samples go: console, metrics.jsonl, rollouts/*.parquet, TensorBoard, curves.png."""
