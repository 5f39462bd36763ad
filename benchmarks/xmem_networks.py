"""The networks of xMem's measured runs (arXiv 2510.21048), and their training step.

Networks come from torchvision's constructors and from transformers' model classes with the public
configurations written down here, so nothing is downloaded. Imported by benchmarks/memory_xmem.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

T = TypeVar("T")

IMAGE = (3, 86, 86)
TOKENS = 128

# Name in the rows -> torchvision's constructor, classes.
CNNS = {
    "VGG16": ("vgg16", 1000),
    "VGG19": ("vgg19", 1000),
    "ResNet101": ("resnet101", 1000),
    "ResNet152": ("resnet152", 1000),
    "MobileNetV2": ("mobilenet_v2", 1000),
    "MobeNetV3Small": ("mobilenet_v3_small", 10),
    "MobeNetV3Large": ("mobilenet_v3_large", 10),
    "MobileNetV3Small": ("mobilenet_v3_small", 10),
    "MobileNetV3Large": ("mobilenet_v3_large", 10),
    "MnasNet": ("mnasnet1_0", 10),
    "RegNetX400MF": ("regnet_x_400mf", 1000),
    "RegNetX32GF": ("regnet_x_32gf", 1000),
    "RegNetY400MF": ("regnet_y_400mf", 1000),
    "ConvNeXtTiny": ("convnext_tiny", 1000),
    "ConvNeXtBase": ("convnext_base", 1000),
}

# Name in the rows -> transformers' configuration class, its values where they differ from the defaults.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "EleutherAI/gpt-neo-125M": (
        "GPTNeo",
        {
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "attention_types": [[["global", "local"], 6]],
        },
    ),
    "T5-small": ("T5", {}),
    "T5-base": ("T5", {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
    "facebook/opt-125m": (
        "OPT",
        {"hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072, "num_attention_heads": 12},
    ),
    "facebook/opt-350m": (
        "OPT",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "ffn_dim": 4096,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
    ),
    "gpt2": ("GPT2", {}),
    "distilgpt2": ("GPT2", {"n_layer": 6}),
    "cerebras/Cerebras-GPT-111M": ("GPT2", {"n_embd": 768, "n_layer": 10, "n_head": 12, "n_inner": 3072}),
    "meta-llama/Llama-3.2-3B-Instruct": (
        "Llama",
        {
            "vocab_size": 128256,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (
        "Qwen2",
        {
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
        },
    ),
    "EleutherAI/pythia-160m": (
        "GPTNeoX",
        {
            "vocab_size": 50304,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
    ),
    "EleutherAI/pythia-1b": (
        "GPTNeoX",
        {
            "vocab_size": 50304,
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 8,
            "intermediate_size": 8192,
        },
    ),
    "Qwen/Qwen3-0.6B": (
        "Qwen3",
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen/Qwen3-4B": (
        "Qwen3",
        {
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
}


def make_step(
    model: str, optimizer: str, batch: int, zero_grad_mode: str = "0", tokens: int = TOKENS
) -> Callable[[], Any]:
    """Return the step of one measured run."""
    _provide_operators()
    if _is_known(CNNS, model):
        network, make_batch = _make_cnn(model, batch)
    else:
        network, make_batch = _make_transformer(model, batch, tokens)
    network.cuda().train()
    rule: Any = getattr(torch.optim, optimizer)(network.parameters())

    # The loop's variables keep the previous batch and outputs until they are assigned again.
    inputs = outputs = loss = None

    def step() -> None:
        nonlocal inputs, outputs, loss
        if zero_grad_mode in ("", "0"):
            rule.zero_grad()
        inputs = make_batch()
        outputs, loss = _compute_loss(network, inputs)
        if zero_grad_mode == "1":
            rule.zero_grad()
        loss.backward()
        rule.step()
        if zero_grad_mode == "2":
            rule.zero_grad()

    return step


def _compute_loss(network: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    if "images" in inputs:
        outputs = network(inputs["images"])
        return outputs, nn.functional.cross_entropy(outputs, inputs["labels"])
    outputs = network(**inputs)
    return outputs, outputs.loss


def _make_cnn(name: str, batch: int) -> tuple[nn.Module, Callable[[], dict[str, torch.Tensor]]]:
    import torchvision

    constructor, classes = _find(CNNS, name)
    network = getattr(torchvision.models, constructor)(num_classes=classes)

    def make_batch() -> dict[str, torch.Tensor]:
        images, labels = torch.empty(batch, *IMAGE), torch.empty(batch, dtype=torch.int64)
        return {"images": images.cuda(), "labels": labels.cuda()}

    return network, make_batch


def _make_transformer(
    name: str, batch: int, tokens: int
) -> tuple[nn.Module, Callable[[], dict[str, torch.Tensor]]]:
    import transformers

    kind, values = _find(TRANSFORMERS, name)
    head = "ForConditionalGeneration" if kind == "T5" else "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    if kind == "T5":
        values = {"decoder_start_token_id": 0, **values}
    config = getattr(transformers, f"{kind}Config")(**values)
    network = getattr(transformers, f"{kind}{head}")(config)

    def make_batch() -> dict[str, torch.Tensor]:
        names = ("input_ids", "attention_mask", "labels")
        return {name: torch.empty(batch, tokens, dtype=torch.int64).cuda() for name in names}

    return network, make_batch


@cache
def _provide_operators() -> torch.library.Library:
    """Define the operators that torchvision's wheel for CUDA registers, so that it can be imported with a
    torch without CUDA (transformers imports it too). The networks use none of them. They live as long as
    their library."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _is_known(networks: Mapping[str, Any], name: str) -> bool:
    return any(_simplify(known) == _simplify(name) for known in networks)


def _find(networks: Mapping[str, T], name: str) -> T:
    for known, network in networks.items():
        if _simplify(known) == _simplify(name):
            return network
    raise ValueError(
        f"Network {name!r} is not written down in {__file__}. Add its constructor or configuration."
    )


def _simplify(name: str) -> str:
    """The name without its organization, case and punctuation."""
    return "".join(letter for letter in name.rpartition("/")[2].lower() if letter.isalnum())
