"""What a Prefect server says of parameters when a run is submitted: it checks them by the flow's schema."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest


def refusal(flow: str = "fit", **parameters: Any) -> str:
    """Return what the server answers to a run of a flow with parameters; empty when it takes them."""
    from prefect.utilities.schema_tools.validation import ValidationError, validate

    asked = getattr(import_module(f"flows.{flow}"), flow)
    given = {"source": "a.csv", "out": "runs/a", **parameters}
    try:
        validate(given, asked.parameters.model_dump(), raise_on_error=True)
    except ValidationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"model": {"model": "sparse_gfa", "n_factors": 0}}, "'model.n_factors'.*0 is less than .* 1"),
        ({"model": {"n_factors": 0}}, "'model.n_factors'.*minimum of 1"),
        ({"model": {"model": "probit", "n_draws": "x"}}, "'model.n_draws'.*'x' is not of type 'integer'"),
        ({"model": {"model": "probit", "n_factor": 3}}, r"'model'.*\('n_factor' was unexpected\)"),
        ({"model": {"model": "sparse-gfa"}}, "'model.model'.*'sparse-gfa' is not one of .*'sparse_gfa'"),
        ({"model": "sparse_gfa"}, "'model'.*'sparse_gfa' is not of type 'object'"),
        ({"run": {"holdout": 2}}, "'run.holdout'.*2 is greater than or equal to the maximum of 1"),
        ({"run": {"executor": "slurm"}}, r"'run.executor'.*'slurm' does not match .*local\|threads\|dask"),
        ({"run": {"executor": "host:8786"}}, "'run.executor'"),
        ({"run": {"cluster": {"address": "tcp://h:1", "workers": 0}}}, "'run.cluster.workers'.*minimum of 1"),
        ({"run": {"cluster": {"address": "tcp://h:1", "share": 0}}}, "'run.cluster.share'.*minimum of 1"),
        ({"run": {"cluster": {"address": "h:1"}}}, "'run.cluster.address'.*'h:1' does not match"),
        ({"run": {"cluster": {"class": "a.B", "adapt": {"minimum": -1}}}}, "adapt.minimum'.*minimum of 0"),
        ({"run": {"cluster": {"class": "a.B", "adapt": {"maximum": 0}}}}, "adapt.maximum'.*minimum of 1"),
        ({"run": {"cluster": {"class": "a.B", "wait": "soon"}}}, "'run.cluster.wait'.*'soon' does not match"),
        ({"run": {"cluster": {"class": "a.B", "address": "tcp://h:1"}}}, "'run.cluster.address'"),
        ({"run": {"cluster": {}}}, "'run.cluster'"),
        ({"run": {"memory_limit": "many"}}, "'run.memory_limit'.*'many' does not match"),
        ({"run": {"metrics": "here"}}, "'run.metrics'.*'here' does not match"),
        ({"source_options": {"block_rows": 0}}, "'source_options.block_rows'.*minimum of 1"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_option_and_bound(parameters: dict[str, Any], said: str) -> None:
    assert re.search(said, refusal(**parameters).replace("\n", " "))


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"model": {"n_factors": 3}},
        {"model": {"model": "probit", "n_factors": 3}},
        {"run": {"executor": "tcp://scheduler:8786", "holdout": 0.1}},
        {"run": {"executor": "tls://scheduler:8786"}},
        {"run": {"executor": "local"}},
        {"run": {"cluster": {"class": "distributed.LocalCluster"}}},
        {"run": {"cluster": {"class": "a.B", "address": None, "adapt": None, "wait": "1-02:00:00"}}},
        {"run": {"cluster": {"class": "a.B", "adapt": {"minimum": 0, "maximum": 1, "interval": "1s"}}}},
        {"run": {"cluster": {"address": "tcp://h:1", "class": None, "workers": None, "wait": "90 minutes"}}},
        *({"run": {"memory_limit": limit}} for limit in (None, "4GB", " 4.5 GiB", "4e9", "1_000", ".5gb")),
        *({"run": {"metrics": port}} for port in (None, "9090", "0.0.0.0:9090")),
    ],
)
def test_right_values_are_taken(parameters: dict[str, Any]) -> None:
    assert refusal(**parameters) == ""


def test_a_hook_is_refused_that_has_no_path() -> None:
    assert refusal("refresh", rule={"accept": "checks:calm"}) == ""
    assert refusal("refresh", rule={}) == ""
    assert re.search(
        "'rule.accept'.*'checks.calm' does not match", refusal("refresh", rule={"accept": "checks.calm"})
    )


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"grid": {"n_factors": [5, 0]}}, r"'grid.n_factors\[1\]'.*0 is less than the minimum of 1"),
        ({"grid": {"n_factors": ["five"]}}, r"'grid.n_factors\[0\]'.*'five' is not of type 'integer'"),
        ({"grid": {"n_factors": 5}}, "'grid.n_factors'.*5 is not of type 'array'"),
        ({"grid": {"n_factors": []}}, "'grid.n_factors'.*should be non-empty"),
        ({"grid": {"n_factor": [5]}}, "'grid'.*'n_factor' is not one of .*'n_factors'"),
        ({"grid": {"n_factors": [5]}, "seeds": [0, -1]}, r"'seeds\[1\]'.*minimum of 0"),
        ({"grid": {"n_factors": [5]}, "seeds": []}, "'seeds'.*should be non-empty"),
    ],
)
def test_a_grid_is_refused_with_option_and_bound(parameters: dict[str, Any], said: str) -> None:
    assert re.search(said, refusal("select", **parameters))


def test_a_grid_is_taken() -> None:
    grid = {"n_factors": [5, 10], "loadings": ["ard", {"rna": "horseshoe"}], "tol": [1e-3], "seed": [1]}
    assert re.search("'seed' is not one of", refusal("select", grid=grid))
    del grid["seed"]
    assert refusal("select", grid=grid, seeds=[0, 1]) == ""


@pytest.mark.parametrize(
    ("flow", "parameters", "said"),
    [
        ("fit", {"run": {"executor": "slurm"}}, "run: executor = slurm: expected 'local', 'threads', 'dask'"),
        ("fit", {"run": {"cluster": {}}}, "run: cluster = neither: expected either class or address"),
        ("fit", {"model": {"model": "sparse-gfa"}}, "model: model = sparse-gfa: expected one of "),
        ("fit", {"source_options": {"block_rows": 0}}, "source_options: block_rows = 0: expected a number"),
        ("refresh", {"rule": {"keep": 0}}, "rule: keep = 0: expected a number >= 1"),
        ("refresh", {"rule": {"accept": "x"}}, "rule: accept = x: expected package.module:function"),
    ],
)
def test_what_is_wrong_is_said_where_a_flow_is_called(
    flow: str, parameters: dict[str, Any], said: str
) -> None:
    from prefect.exceptions import ParameterTypeError

    called = getattr(import_module(f"flows.{flow}"), flow)
    with pytest.raises(ParameterTypeError) as caught:
        called.validate_parameters({"source": "a.csv", "out": "b", **parameters})
    assert str(caught.value).splitlines()[1].startswith(f" - {said}")
