"""A model uses the weights in ``weights.bin`` for a while, and gets its own back unchanged."""

from __future__ import annotations

import torch

from bundles import shared_bundle, tiny_model
from mytx.exporter.formats.onnx.shared_weights import SMALLEST, WEIGHTS
from mytx.exporter.parity.lending import lent


def test_lent_weights_are_the_files_and_come_back_as_they_were() -> None:
    model = tiny_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pointers = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    with lent(model, shared_bundle()):
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name])
            assert (tensor.data_ptr() != pointers[name]) is (tensor.nbytes >= SMALLEST)
        inside = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.data_ptr() != inside[name] or tensor.nbytes < SMALLEST


def test_what_is_written_to_lent_weights_is_not_written_to_the_file() -> None:
    model, data = tiny_model(), (shared_bundle() / WEIGHTS).read_bytes()
    with lent(model, shared_bundle()), torch.no_grad():
        weight = model.my_transformer.encoder.layers[0].linear1.weight
        changed = weight.add_(1).clone()
    assert torch.equal(weight, changed)
    assert (shared_bundle() / WEIGHTS).read_bytes() == data


def test_weights_that_are_not_the_files_are_not_lent() -> None:
    model = tiny_model()
    weight = model.my_transformer.encoder.layers[0].linear1.weight
    with torch.no_grad():
        weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(9.0))
    pointer = weight.data_ptr()
    with lent(model, shared_bundle()):
        assert weight.data_ptr() == pointer
