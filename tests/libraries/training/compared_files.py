"""Saves a model with torch and safetensors, loads it, or changes the files. Arguments: the action and the directory of the files."""

from __future__ import annotations

import sys

import safetensors.torch
import torch

action, directory = sys.argv[1:]
torch_file, safetensors_file = f"{directory}/step-1.pt", f"{directory}/step-1.safetensors"


def save(model):
    torch.save({"model": model, "step": 1}, torch_file)
    safetensors.torch.save_file(model, safetensors_file)


def load():
    safetensors.torch.load_file(safetensors_file)
    return torch.load(torch_file)["model"]


if action == "save":
    save({f"layer.{number}.weight": torch.full((100, 100), float(number)) for number in range(4)})
else:
    model = load()
    if action == "change":
        model["layer.1.weight"] = model["layer.1.weight"].half()
        del model["layer.2.weight"]
        model["layer.3.weight"].zero_()
        save(model)
