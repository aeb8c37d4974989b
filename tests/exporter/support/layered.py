"""Models of several layers, and their graphs."""

from __future__ import annotations

from typing import Any

from exported_models import shaken, translation
from mytx.exporter.graphs.decode_graphs import cross_graph
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.models import Model


def graph_of(model: Model, name: str, masks: str | None = None) -> Graph:
    graphs = graphs_of(shaken(model), masks)
    return cross_graph(graphs["step"]) if name == "cross" else graphs[name]


def deep(**changes: Any) -> Model:
    return translation(num_encoder_layers=2, num_decoder_layers=3, **changes)
