"""What a Prefect server says of parameters when a run is submitted: it checks them by the flow's schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from factorflow.errors import InputError


@pytest.fixture(autouse=True, scope="module")
def check_of_schemas() -> Iterator[Callable[[Any], None]]:
    """Leave the check of a schema, a second for each run, to one test."""
    validation = pytest.importorskip("prefect.utilities.schema_tools.validation")
    check = validation._VALIDATOR.check_schema
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation._VALIDATOR, "check_schema", lambda *_, **__: None)
        yield check


@pytest.mark.parametrize("flow", ["fit", "refresh", "select"])
def test_schemas_are_schemas(flow: str, check_of_schemas: Callable[[Any], None]) -> None:
    check_of_schemas(schema(flow))


@cache
def schema(flow: str) -> dict[str, Any]:
    """Return what the server knows of the parameters of a flow."""
    found: dict[str, Any] = getattr(import_module(f"flows.{flow}"), flow).parameters.model_dump()
    return found


def refusal(flow: str = "fit", **parameters: Any) -> str:
    """Return what the server answers to a run of a flow with parameters; empty when it takes them."""
    from prefect.utilities.schema_tools.validation import ValidationError, validate

    given = {"source": "a.csv", "out": "runs/a", **parameters}
    try:
        validate(given, schema(flow), raise_on_error=True)
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
        ({"run": {"cluster": {"class": "a.B", "adapt": {"minimum": 9, "maximum": 2}}}}, "maximum'.*of 9"),
        ({"run": {"workers": "x"}}, "'run.workers'.*'x' is not of type 'integer', 'null'"),
        ({"run": {"max_minutes": [1]}}, "'run.max_minutes'.* is not of type 'number', 'null'"),
        ({"run": {"cluster": 3}}, "'run.cluster'.*3 is not of type 'object', 'null'"),
        ({"model": {"covariates": 1.5}}, "'model.covariates'.*1.5 is not of type 'string', 'array', 'null'"),
        ({"source_options": {"sep": 1}}, "'source_options.sep'.*1 is not of type 'string', 'null'"),
        ({"source_options": {"obsm": "X_pca"}}, "'source_options.obsm'.* is not of type 'array'"),
        ({"source_options": {"transpose": 1.5}}, "'source_options.transpose'.*of type 'boolean', 'array'"),
        ({"source_options": {"block_rows": "x"}}, "'source_options.block_rows'.*of type 'integer', 'null'"),
        *(
            ({"source_options": {"block_rows": n}}, rf"'source_options.block_rows'.*{n} is not one of \[1, 2")
            for n in (0, -2, 3, 1000)
        ),
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
        {"run": {"max_iter": None}, "source_options": {"block_rows": None, "obsm": ["X_pca"]}},
        *({"source_options": {"block_rows": n}} for n in (1, 32, 2**30)),
        *(
            {"run": {"cluster": {"class": "a.B", "adapt": adapt}}}
            for adapt in ({"minimum": 9, "maximum": 9}, {"maximum": 1}, {"minimum": 65, "maximum": 66})
        ),
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
        ({"grid": {"covariates": [1.5]}}, r"'grid.covariates\[0\]'.*of type 'string', 'array', 'null'"),
        ({"grid": {"n_factors": [5]}, "run": {"holdout": 0}}, "'run.holdout'.*minimum of 0"),
    ],
)
def test_a_grid_is_refused_with_option_and_bound(parameters: dict[str, Any], said: str) -> None:
    assert re.search(said, refusal("select", **parameters))


def test_a_grid_is_taken() -> None:
    grid = {"n_factors": [5, 10], "loadings": ["ard", {"rna": "horseshoe"}], "tol": [1e-3], "seed": [1]}
    assert re.search("'seed' is not one of", refusal("select", grid=grid))
    del grid["seed"]
    assert refusal("select", grid=grid, seeds=[0, 1], run={"executor": "local"}) == ""


@pytest.mark.parametrize(
    ("flow", "parameters", "said"),
    [
        ("fit", {"run": {"executor": "slurm"}}, "run: executor = slurm: expected 'local', 'threads', 'dask'"),
        ("fit", {"run": {"cluster": {}}}, "run: cluster = neither: expected either class or address"),
        ("fit", {"model": {"model": "sparse-gfa"}}, "model: model = sparse-gfa: expected one of "),
        ("fit", {"source_options": {"block_rows": 0}}, "source_options: block_rows = 0: expected a power of"),
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


WRONG = [
    ("select", {"grid": {"n_factors": [3, 0]}}, "n_factors = 0: expected a number >= 1"),
    (
        "select",
        {"grid": {"n_draws": [5]}, "model": {"model": "gplvm_cmf"}},
        "n_draws = 5: expected an option of factorflow.models",
    ),
    (
        "fit",
        {"run": {"cluster": {"class": "a.B", "adapt": {"minimum": 90, "maximum": 80}}}},
        r"run.adapt: minimum = 90: expected at most maximum \(80\)",
    ),
    ("fit", {"source_options": {"block_rows": 3}}, "source_options.block_rows = 3: expected a power of two"),
    ("fit", {"source_options": {"like": "d.zarr"}}, "source_options.like = d.zarr: expected nothing"),
    ("refresh", {"rule": {"keep": 0}}, "rule.keep = 0: expected a number >= 1"),
]


@pytest.mark.thorough
def test_grids_have_the_bounds_of_the_family() -> None:
    """Options that families have with other bounds or other types; of the first, also those of others."""
    from factorflow.models.registry import registered_models
    from flows.select import select

    def is_taken(check: Any, *given: Any, **options: Any) -> bool:
        try:
            check(*given, **options)
        except InputError:
            return False
        return True

    n_refused = 0
    names = {name for kind in registered_models().values() for name in kind.model_fields} - {"model", "views"}
    for number, (family, kind) in enumerate(registered_models().items()):
        for name in sorted(names if number == 0 else kind.model_fields.keys() & names):
            for value in (0, 7, "auto", None, [1.0, 1.0]) if name in kind.model_fields else (7,):
                taken = is_taken(kind, **{name: value})
                grid = {"source": "a", "out": "b", "model": {"model": family}, "grid": {name: [value]}}
                assert is_taken(select.check, grid) == taken, (family, name, value)
                n_refused += not taken
    assert n_refused > 100


@pytest.mark.parametrize(("flow", "parameters", "said"), WRONG)
def test_a_flow_that_is_called_refuses_before_there_is_a_run(
    flow: str, parameters: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the models of options refuse, each option and the options together."""
    from prefect import Flow

    called = getattr(import_module(f"flows.{flow}"), flow)
    monkeypatch.setattr(Flow, "__call__", lambda *_, **__: pytest.fail("there is a run"))
    with pytest.raises(InputError, match=said):
        called("a.csv", "b", **parameters)


@pytest.mark.thorough
@pytest.mark.usefixtures("prefect_api")
def test_a_run_that_is_submitted_is_checked_by_the_models_of_options() -> None:
    """With the parameters of the deployment; a refused one leaves nothing on the server."""
    from prefect.client.orchestration import get_client

    from flows.select import select
    from flows.submit import submit

    out = {"source": "a.csv", "out": "b"}
    select.to_deployment("checked", parameters={**out, "model": {"model": "gplvm_cmf"}}).apply()

    def n_runs() -> int:
        with get_client(sync_client=True) as client:
            return len(client.read_flow_runs())

    before = n_runs()
    for name, parameters, said in [
        ("select/checked", {"grid": {"n_draws": [5]}}, "n_draws = 5: expected an option of"),
        ("select/checked", {}, "expected grid too"),
        ("select/checked", {"grid": {"n_factors": [5]}, "gird": 1}, "param = gird: expected a parameter of"),
        ("select/other", {"grid": {"n_factors": [5]}}, "deployment = select/other: expected a deployment"),
        ("choose", {}, "deployment = choose: expected FLOW/NAME"),
    ]:
        with pytest.raises(InputError, match=said):
            submit(name, parameters)
    assert n_runs() == before
    assert submit("select/checked", {"grid": {"n_factors": [2, 3]}}).parameters["grid"] == {
        "n_factors": [2, 3]
    }
    assert n_runs() == before + 1
