"""Menus of shapes of each policy: every planned micro-batch has a shape, and the shapes lose little."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

from ddpsched.config import RunConfig, parse
from ddpsched.costs.shape_menu import MenuCost, on_menu
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.shapes import search
from ddpsched.planning.shapes.choose import choose_shapes
from ddpsched.step_plan import StepPlan

LENGTHS = KnownLengths(np.random.default_rng(0).lognormal(2.4, 0.6, 640).clip(3, 66).astype(np.int64))
POLICIES: dict[str, dict[str, Any]] = {
    "static": {},
    "balanced": {},
    "balanced, M = 3": {"max_microbatches": 3},
    "minmax": {"prefetch": 12},
    "token_budget": {"max_tokens_for_batch": 130},
    "token_budget, one shape": {"max_tokens_for_batch": 130, "same_shape": True},
    "bins": {"median_batch": 4},
    "bins of ranks": {"median_batch": 4, "per_rank_bins": True},
    "pool": {"max_tokens_for_batch": 130, "pool_size": 8},
    "pool of few tokens": {"max_tokens_for_batch": 40, "pool_size": 8},
    "pool of many tokens": {"pool_size": 8},
    "token_budget of many tokens": {"max_tokens_for_batch": 2**30},
    "bins of many samples": {"median_batch": 512},
}


def config_of(name: str, shapes: int = 6, **more: Any) -> RunConfig:
    kind = name.split(" ")[0].rstrip(",")
    table = {
        "epochs": 2, "global_batch": 16, "world_size": 2, "policy": {"kind": kind, **POLICIES.get(name, {})},
        "compile": {"kind": "static", "shapes": shapes},
    }  # fmt: skip
    return parse({**table, **more})


def plans_on_a_menu(config: RunConfig) -> tuple[MenuCost, list[StepPlan]]:
    spec = config.plan_spec(menu=config.menu(LENGTHS))
    assert isinstance(spec.cost, MenuCost)
    return spec.cost, list(plan_steps(spec, LENGTHS, LocalExchange(config.world_size)))


@pytest.fixture
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search judge few menus, where what it finds need not be good."""
    monkeypatch.setattr(search, "MOST", 150)


@pytest.mark.usefixtures("few_tries")
@pytest.mark.parametrize("name", POLICIES)
def test_each_micro_batch_has_a_shape_and_each_sample_comes_once(name: str) -> None:
    config = config_of(name)
    cost, plans = plans_on_a_menu(config)
    assert len(cost.shapes) <= 6
    seen = [np.zeros(len(LENGTHS), dtype=int) for _ in range(2)]
    for plan in plans:
        seen[plan.epoch][plan.ids] += 1
        priced = []
        for rank in plan.ranks:
            shapes = [cost.shape(len(micro), micro.padded_length(LENGTHS.lengths(micro.ids))) for micro in rank]
            priced.append(sum(int(cost.model.padded(*shape)) for shape in shapes))
        assert plan.predicted_cost == tuple(priced)
    assert (np.array(seen) == 1).all()


@pytest.mark.parametrize(("name", "loss"), [("static", 1.13), ("balanced", 1.45), ("minmax", 1.45), ("bins", 1.3)])
def test_more_shapes_lose_less(name: str, loss: float) -> None:
    config = config_of(name)
    plain = list(plan_steps(config.plan_spec(), LENGTHS, LocalExchange(2)))
    free = sum(max(plan.predicted_cost or ()) for plan in plain)
    each = {}
    for shapes in (4, 8, 24):
        _, plans = plans_on_a_menu(config_of(name, shapes))
        each[shapes] = sum(max(plan.predicted_cost or ()) for plan in plans) / free
    assert each[24] < each[8] < each[4]
    assert each[8] < loss
    assert each[24] < 1 + 0.85 * (loss - 1)


@pytest.mark.parametrize("name", ["pool of many tokens", "bins of many samples", "bins, replaced"])
def test_no_shape_has_more_rows_than_a_micro_batch_can_have(name: str) -> None:
    """A budget of tokens, or a bin's batch size, may allow for many more samples than a rank has."""
    more = {"policy": {"kind": "bins", "median_batch": 512, "replacement": True}} if "replaced" in name else {}
    cost, plans = plans_on_a_menu(config_of(name, **more))
    assert max(rows for rows, _ in cost.shapes) == max(
        len(micro) for plan in plans for rank in plan.ranks for micro in rank
    )


def test_samples_that_are_all_padded_to_one_length_have_one_shape() -> None:
    config = config_of("static", data={"max_length": 70, "pad_to": "max_length"})
    assert config.menu(LENGTHS).shapes == ((8, 70),)
    _, plans = plans_on_a_menu(config)
    assert {len(micro) for plan in plans for rank in plan.ranks for micro in rank} == {8}


@pytest.mark.parametrize("name", ["balanced", pytest.param("balanced, M = 3", marks=pytest.mark.slow)])
def test_a_plan_on_the_menu_costs_less_than_one_that_is_rounded_up_to_it(name: str) -> None:
    config = config_of(name, 8)
    cost, plans = plans_on_a_menu(config)
    planned = sum(max(plan.predicted_cost or ()) for plan in plans)
    plain = plan_steps(config.plan_spec(), LENGTHS, LocalExchange(2))
    rounded = sum(
        max(sum(cost.price(micro, LENGTHS.lengths(micro.ids)) for micro in rank) for rank in plan.ranks)
        for plan in plain
    )
    assert planned < 0.95 * rounded


@pytest.mark.usefixtures("few_tries")
def test_equal_arguments_give_equal_menus() -> None:
    for name in ("balanced", "minmax"):
        spec = config_of(name).plan_spec()
        assert choose_shapes(spec, LENGTHS, 6) == choose_shapes(spec, LENGTHS, 6)


def test_a_given_menu_is_taken_as_it_is() -> None:
    config = config_of("static", compile={"kind": "static", "menu": [[8, 70], [8, 20]]})
    assert config.menu(LENGTHS).shapes == ((8, 70), (8, 20))
    short = config_of("static", compile={"kind": "static", "menu": [[8, 40]]})
    said = r"up to 40 tokens, and \d+ of 640 samples are longer, the longest, sample \d+ \(from 0\), of 66; add a shape"
    with pytest.raises(ConfigError, match=said):
        short.menu(LENGTHS)
    few = config_of("static", compile={"kind": "static", "menu": [[4, 70], [8, 40]]})
    said = r"up to 4 rows for the longest sample, of 66 tokens, and policy.kind = 'static' gives its rank up to 8; add"
    with pytest.raises(InfeasibleError, match=said):
        few.menu(LENGTHS)
    assert config_of("balanced", compile={"kind": "static", "menu": [[4, 70], [16, 40]]}).menu(LENGTHS).shapes
    with pytest.raises(ConfigError, match=r"up to 40 tokens, and 640 of 640 samples are longer, .* of 128; add"):
        config_of("static", compile={"kind": "static", "menu": [[8, 40]]}, data={"pad_to": "max_length"}).menu(LENGTHS)


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ({"kind": "token_budget", "max_tokens_for_batch": 99, "budget": "real"}, "budget = 'real' or two budgets"),
        ({"kind": "bins", "median_batch": 4}, r"compile\.shapes = 2, but policy\.kind = 'bins' needs 4; raise compile"),
        (
            {"kind": "peer", "peer": "fairseq"},
            "'peer' plans on no menu of shapes; use compile.kind = 'eager'",
        ),
    ],
)
def test_policies_without_a_menu_say_so(policy: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config_of("", policy=policy, compile={"kind": "static", "shapes": 2}).menu(LENGTHS)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "packed": ({"policy": {"kind": "packed"}}, "kind = 'packed' joins samples to rows of any length; use 'eager'"),
    "fsdp": ({"sync": {"kind": "fsdp"}}, "is not tried with sync.kind = 'fsdp'; use 'ddp' or 'bucketed'"),
    "slowness": ({"executor": {"slowness": [1, 2]}}, "compiles no repeated work of executor.slowness"),
    "memory": ({"memory": {"probe": True}}, "which memory has no part in; leave out one of the two"),
    "online cost": (
        {"policy": {"kind": "balanced"}, "cost": {"kind": "affine_quadratic", "beta": 1e-3, "online": True}},
        "which cost.online has no part in",
    ),
    "lockstep": ({"policy": {"kind": "balanced", "lockstep": True}}, "which policy.lockstep has no part in"),
    "online lengths": (
        {"policy": {"kind": "minmax"}, "data": {"lengths": "online"}}, "use data.lengths = 'known', or compile.menu",
    ),
    "a cover of windows": (
        {"policy": {"kind": "minmax"}, "compile": {"kind": "static", "cover": "order"}}, "use cover = 'warm_up'",
    ),
    "a cover of a sorted order": (
        {"order": {"kind": "curriculum"}, "compile": {"kind": "static", "cover": "order"}},
        "an order that sorts, .* use cover = 'warm_up'",
    ),
    "a menu of nothing": (
        {"compile": {"kind": "eager", "menu": [[8, 8]]}}, r"menu = \[\[8, 8\]\] does nothing with kind = 'eager'",
    ),
    "few programs of a shuffled order": (
        {"compile": {"kind": "static", "live": 2}}, "order.kind = 'shuffled' needs all of them .*; use 'curriculum'",
    ),
    "few programs of any shape": ({"compile": {"kind": "dynamic", "live": 2}}, "live = 2 does nothing with kind"),
    "a mode of eager": ({"compile": {"kind": "eager", "mode": "max-autotune"}}, "mode = 'max-autotune' does nothing"),
    "more shapes than the limit": (
        {"compile": {"kind": "static", "shapes": 1, "menu": [[8, 8], [8, 9]]}},
        "menu has 2 shapes, more than shapes = 1; raise shapes, or leave some out",
    ),
    "a menu without shapes": ({"compile": {"kind": "static", "menu": []}}, "at least 1 item"),
    "auto of slow ranks": (
        {"policy": {"kind": "auto"}, "executor": {"slowness": [1, 2]}, "compile": {"kind": "eager"}},
        "measures ranks as they are, and executor.slowness makes them slower; name a policy",
    ),
    "auto under resharding": (
        {"policy": {"kind": "auto"}, "sync": {"kind": "fsdp", "reshard": True}, "compile": {"kind": "eager"}},
        "set policy.max_microbatches = 1",
    ),
    "a shape twice": ({"compile": {"kind": "static", "menu": [[8, 8], [8, 8]]}}, "names a shape twice; leave one out"),
    "a mode of no inductor": (
        {"compile": {"kind": "static", "backend": "aot_eager", "mode": "max-autotune"}}, "is of backend = 'inductor'",
    ),
    "graphs of several ranks": (
        {"executor": {"kind": "distributed"}, "compile": {"kind": "dynamic", "mode": "max-autotune"}},
        "records CUDA graphs, .*; use 'max-autotune-no-cudagraphs' on several ranks",
    ),
    "a simulated program": (
        {"executor": {"kind": "simulated"}, "compile": {"kind": "dynamic"}}, "which has no model; leave it out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compiled_is_refused_by_name(case: str) -> None:
    more, named = REFUSED[case]
    with pytest.raises(ConfigError, match=named):
        config_of("static", **more)


@pytest.mark.usefixtures("few_tries")
@pytest.mark.parametrize("name", ["static", "balanced", "balanced, M = 3"])
def test_the_first_steps_meet_every_shape(name: str) -> None:
    """Each sample still comes once, in the same global batches, and after the cover no rank meets a new shape."""
    config = config_of(name, compile={"kind": "static", "shapes": 5, "cover": "order"}, epochs=1)
    menu = config.menu(LENGTHS)
    spec = config.plan_spec(menu=menu)
    cost = spec.cost
    assert isinstance(cost, MenuCost)
    assert 0 < menu.cover_steps < 20
    plans = list(plan_steps(spec, LENGTHS, LocalExchange(2)))
    met: list[set[tuple[int, int]]] = [set(menu.warm_up), set(menu.warm_up)]
    for plan in plans:
        for rank, micros in enumerate(plan.ranks):
            shapes = {cost.shape(len(micro), int(LENGTHS.lengths(micro.ids).max())) for micro in micros}
            assert plan.step < menu.cover_steps or shapes <= met[rank], "met in the first steps"
            met[rank] |= shapes
    usual = plan_steps(config_of(name, epochs=1).plan_spec(menu=menu), LENGTHS, LocalExchange(2))
    batches = {tuple(sorted(plan.ids.tolist())) for plan in usual}
    assert {tuple(sorted(plan.ids.tolist())) for plan in plans} == batches
    middle = plans[len(plans) // 2]
    rest = plan_steps(spec, LENGTHS, LocalExchange(2), start=middle.after)
    assert [plan.digest for plan in rest] == [plan.digest for plan in plans[middle.step + 1 :]]


@pytest.mark.usefixtures("few_tries")
@pytest.mark.parametrize(("begun", "ranks"), [(2, 3), (3, 2)])
def test_a_cover_stays_where_a_run_goes_on_with_other_ranks(begun: int, ranks: int) -> None:
    options = {"kind": "static", "shapes": 4, "cover": "order"}
    first = config_of("balanced", world_size=begun, compile=options)
    spec = first.plan_spec(menu=first.menu(LENGTHS))
    later = config_of("balanced", world_size=ranks, compile=options)
    menu = later.menu(LENGTHS, goes_on=True, batch_ranks=begun)
    other = later.plan_spec(batch_ranks=begun, menu=menu)
    assert menu.shapes != menu.cover == first.menu(LENGTHS).shapes
    assert menu.warm_up == menu.shapes
    for epoch in range(2):
        order = spec.epoch_order(LENGTHS, epoch).tolist()
        assert other.epoch_order(LENGTHS, epoch).tolist() == order
        assert sorted(order) == list(range(len(LENGTHS)))
    plans = list(plan_steps(spec, LENGTHS, LocalExchange(begun)))
    middle = plans[9].after
    rest = list(plan_steps(other, LENGTHS, LocalExchange(ranks), start=middle, ranks_before=begun))
    ids = [sorted(plan.ids.tolist()) for plan in rest]
    assert ids == [sorted(plan.ids.tolist()) for plan in plans[10:]], "the same global batches, each once"


def test_a_menu_is_charged_in_the_yardstick_of_a_simulated_run() -> None:
    config = config_of("static", executor={"kind": "simulated"})
    menu = config.menu(LENGTHS)
    cost = on_menu(config.cost_on(()), menu.shapes)
    plan = next(islice(plan_steps(config.plan_spec(menu=menu), LENGTHS, LocalExchange(2)), 1))
    from ddpsched.simulated import SimulatedExecutor

    executor = SimulatedExecutor(config, LENGTHS)
    executor.use(config, menu)
    records = executor.execute(plan)
    for rank, record in enumerate(records):
        rows, length = cost.shape(8, int(LENGTHS.lengths(plan.ranks[rank][0].ids).max()))
        assert record.padded_tokens == rows * length
        assert record.compute_s == pytest.approx(0.09 + 2.6e-3 * rows * length)


@pytest.mark.parametrize("name", ["balanced", "balanced, M = 3", "minmax", "static"])
def test_one_shape_is_enough(name: str) -> None:
    cost, plans = plans_on_a_menu(config_of(name, shapes=1))
    ((rows, length),) = cost.shapes
    assert length == int(LENGTHS.lengths(np.arange(len(LENGTHS))).max())
    assert all(len(micro) <= rows for plan in plans for rank in plan.ranks for micro in rank)
