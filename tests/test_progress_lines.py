"""Progress from the output of jobs: many kinds of lines, and what must not be taken for progress."""

from __future__ import annotations

import time

import pytest

from gpu_flows.schedulers.prediction.job_progress import JobProgress

BAR = "███▌    "


def read(lines: list[str], **parameters: object) -> float | None:
    """Return the fraction that the lines told last."""
    progress, told = JobProgress(parameters), None
    for line in lines:
        point = progress.read(line)
        if point is not None:
            told = point.fraction
    return told


@pytest.mark.parametrize(
    ("lines", "fraction"),
    [
        # tqdm
        ([f" 45%|{BAR}| 90/200 [00:12<00:15,  7.20it/s]"], 0.45),
        ([f"Training:  45%|{BAR}| 90/200 [00:12<00:15,  7.20it/s, loss=0.3, acc=12/20]"], 0.45),
        ([f"\r  0%|   | 0/200 [00:00<?, ?it/s]\r 25%|{BAR}| 50/200 [00:12<00:36,  4.1it/s]"], 0.25),
        ([f" 45%|{BAR}| 1.35M/3.00M [00:12<00:15, 7.20MB/s]"], 0.45),
        ([f"Epoch 3/10:  50%|{BAR}| 100/200 [00:12<00:12,  8.1it/s]"], 0.25),
        ([f"Epochs:  30%|{BAR}| 3/10 [01:00<02:20, 20.0s/it]"], 0.3),
        (
            [
                f"Epochs:  30%|{BAR}| 3/10 [01:00<02:20, 20.0s/it]",
                f"Batches:  50%|{BAR}| 50/100 [00:10<00:10,  5.0it/s]",
            ],
            0.35,
        ),
        ([f" 20%|{BAR}| 2/10 [01:00<04:00]", f" 50%|{BAR}| 50/100 [00:10<00:10,  5.0it/s]"], 0.25),
        # what people print
        (["Epoch 3/10"], 0.2),
        (["Epoch 3/10 loss 0.52 acc 0.81"], 0.3),
        (["epoch: 3 of 10, train_loss=0.4"], 0.3),
        (["Epoch [3/10], Step [300/600], Loss: 0.1234"], 0.25),
        (["[Epoch 3/10] [Batch 300/600] [D loss: 0.1]"], 0.25),
        (["Epoch 0/9", "----------", "Epoch 4/9"], 4 / 9),
        (["step 100/1000"], 0.1),
        (["[Step 100/1,000] loss=3.2"], 0.1),
        (["iter 20/500: loss 4.1, time 120ms"], 0.04),
        (["Iteration 20 of 500"], 0.04),
        (["2026-11-18 02:47:11 INFO train.py:12 batch 5/20 loss 1.2"], 0.25),
        (["Progress: 45%"], 0.45),
        (["45.5% complete"], 0.455),
        # Lightning
        (["max_epochs: 4", f"Epoch 1:  50%|{BAR}| 100/200 [00:12<00:12, 8.1it/s, v_num=3, loss=0.2]"], 0.125),
        (
            [
                "max_epochs=4",
                f"Epoch 0: 100%|{BAR}| 200/200 [00:24<00:00, 8.1it/s]",
                f"Validation DataLoader 0:  10%|{BAR}| 5/50 [00:01<00:09, 8.1it/s]",
                f"Epoch 1:  50%|{BAR}| 100/200 [00:12<00:12, 8.1it/s]",
            ],
            0.375,
        ),
        (["Epoch 2/9 ━━━━━━━━━━━━╸ 90/200 0:00:12 • 0:00:15 7.21it/s"], (1 + 0.45) / 9),
        # Hugging Face
        (["  Num Epochs = 4", "{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 1.25}"], 1.25 / 4),
        (
            [
                "  Num Epochs = 3",
                "  Total optimization steps = 1,000",
                f" 40%|{BAR}| 400/1000 [02:00<03:00,  3.3it/s]",
                "{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 1.2}",
                f"  0%|{BAR}| 0/50 [00:00<?, ?it/s]",
                f" 50%|{BAR}| 500/1000 [02:30<02:30,  3.3it/s]",
            ],
            0.5,
        ),
        (  # as version 5 prints it by default: without the number of epochs
            [
                f" 10%|{BAR}| 5/48 [00:00<00:00, 330.37it/s]",
                "{'loss': '0.1225', 'grad_norm': '0.69', 'epoch': '0.3125'}",
                f" 31%|{BAR}| 15/48 [00:00<00:00, 550.94it/s]",
                f"  0%|{BAR}| 0/8 [00:00<?, ?it/s]\x1b[A",
                "\x1b[A{'eval_loss': '0.122', 'eval_runtime': '0.0073', 'epoch': '1'}",
                f" 50%|{BAR}| 24/48 [00:00<00:00, 550.94it/s]",
            ],
            0.5,
        ),
        # Keras
        (["Epoch 2/5", "469/938 [==============>...............] - ETA: 1s - loss: 0.3"], 0.3),
        (
            [
                "Epoch 2/5",
                "\x1b[1m469/938\x1b[0m \x1b[32m━━━━━━━\x1b[0m \x1b[1m1s\x1b[0m 3ms/step - loss: 0.3",
            ],
            0.3,
        ),
        # fastai
        (["Epoch 2/4 : |████------| 50.00% [100/200 00:10<00:10 0.33]"], 0.375),
        # the train flow
        (["02:47:11 | INFO | Flow run 'x' -  45%  epoch 3/10 loss 0.5, 1,000 samples/s"], 0.45),
    ],
)
def test_lines_that_tell_progress(lines: list[str], fraction: float) -> None:
    assert read(lines) == pytest.approx(fraction, abs=1e-6)


@pytest.mark.parametrize(
    ("lines", "parameters", "fraction"),
    [
        (["Epoch: [2][100/400]  Time 0.3 Loss 1.2"], {"epochs": 10}, 0.225),
        (["Train Epoch: 1 [12800/64000 (20%)]\tLoss: 0.3"], {"epochs": 10}, 0.02),
        (["Train Epoch: 1 [0/64000 (0%)]", "Train Epoch: 2 [32000/64000 (50%)]"], {"epochs": 10}, 0.15),
        (["epoch     train_loss  valid_loss  time", "0         0.52  0.31  00:12"], {"epochs": 4}, 0.25),
        (["iter 50: loss 3.1, time 12ms"], {"max_iters": 200}, 0.25),
        (["{'loss': 0.5, 'epoch': 1.5}"], {"num_train_epochs": 3}, 0.5),
        (
            [f"100%|{BAR}| 99/99 [0:1<0:0]", f" 0%|{BAR}| 0/99 [0:0<?]", f"50%|{BAR}| 49.5/99 [0:1<0:1]"],
            {"epochs": 5},
            0.3,
        ),
        ([f"50%|{BAR}| 500/1000 [00:10<00:10]"], {"epochs": 5}, 0.5),
    ],
)
def test_lines_that_need_the_parameters_of_the_run(
    lines: list[str], parameters: dict[str, object], fraction: float
) -> None:
    assert read(lines, **parameters) == pytest.approx(fraction, abs=1e-6)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "using 1/2 GPUs",
        "2026/11/18 02:47:11 started",
        "connecting to 10.0.0.1/24",
        "accuracy 938/1000",
        "Test set: Average loss: 0.05, Accuracy: 9831/10000 (98%)",
        "GPU utilization 45%",
        "accuracy: 45%",
        "memory 12/16 GB used (75%)",
        f"Validating:  45%|{BAR}| 90/200 [00:12<00:15,  7.20it/s]",
        f"Downloading model.safetensors:  45%|{BAR}| 90M/200M [00:12<00:15,  7.20MB/s]",
        f"Loading checkpoint shards:  50%|{BAR}| 1/2 [00:12<00:15]",
        f"Sanity Checking DataLoader 0:  50%|{BAR}| 1/2 [00:00<00:00]",
        "Validation step 5/20 loss 0.3",
        "val batch 5/20",
        "123it [00:12, 10.1it/s]",
        "saved to /data/run/2/3/checkpoint",
        "epoch time 12.5 s",
        "step 5/0",
        "batch 30/20",
        "Early stopping patience 3/5",
        "https://example.org/a/1/2?x=3%20of%204",
        "loss 0.3 lr 1e-4",
    ],
)
def test_lines_that_do_not(line: str) -> None:
    assert read([line]) is None


def test_a_loop_that_begins_anew_is_not_the_whole_job() -> None:
    first = [f" {10 * n}%|{BAR}| {n}/10 [00:12<00:15,  7.20it/s]" for n in range(11)]
    assert read(first) == 1.0
    assert read(first + first[:4]) is None, "the number of passes is unknown"


def test_steps_that_go_on_in_the_next_epoch_count_the_whole_job() -> None:
    lines = ["Epoch 1/4", "step 50/400", "step 100/400", "Epoch 2/4", "step 150/400"]
    assert read(lines) == pytest.approx(0.375)


def test_a_validation_bar_does_not_set_an_epoch_back() -> None:
    lines = ["Epoch 2/4", "100/100 [=====]", "10/50 [=>...]"]
    assert read(lines) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "line",
    [
        "step" + " " * 100_000 + "x/1",
        "epoch" + " " * 50_000 + "[" * 50_000 + "1/2",
        "Epoch " + "1" * 100_000 + "/2",
        "epoch 1" + "━" * 100_000,
        "1%|" * 30_000,
        "| " * 50_000 + "1%",
        "epoch 1/2 " + "a_" * 50_000,
        "\x1b[" * 50_000 + "epoch",
        "1 of 2 " * 20_000,
        "{" * 100_000 + "'epoch': ",
    ],
)
def test_no_line_takes_long(line: str) -> None:
    """The output is whatever a job prints."""
    progress, began = JobProgress({"epochs": 3, "max_steps": 9}), time.process_time()
    progress.read(line)
    assert time.process_time() - began < 0.05


def test_a_line_without_progress_is_passed_over_in_two_microseconds() -> None:
    """A generous limit on a loaded machine: benchmarks/progress_hints.py measures it."""
    progress = JobProgress()
    lines = [
        "loss 0.3124 lr 1e-4 grad_norm 1.22 tokens 18392",
        "saving to /data/runs/a/checkpoint.pt done",
    ] * 500
    began = time.process_time()
    for line in lines:
        progress.read(line)
    assert (time.process_time() - began) / len(lines) < 20e-6
