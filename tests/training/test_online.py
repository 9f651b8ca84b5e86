"""A run whose plans follow its ranks' measured speeds."""

from pathlib import Path

from runs import config_of, records_of

from ddpsched.config import parse
from ddpsched.run_loop import run


def test_a_slow_rank_gets_less_as_the_run_goes_on(tmp_path: Path) -> None:
    """Rank 0 does everything four times; ten steps later it has far less than an equal share of the tokens."""
    shares = {}
    for online in (False, True):
        values = config_of(tmp_path, policy="balanced", steps=16, global_batch=64, data={"size": 400}).model_dump(
            exclude_none=True
        )
        values["policy"] = {"kind": "packed"}
        values["cost"] = {"kind": "affine_quadratic", "alpha": 1e-4, "beta": 3e-5, "online": online}
        values["executor"] = {"kind": "virtual", "slowness": [4.0, 1.0]}
        rows = records_of(run(parse({**values, "name": f"online-{online}"})))
        late = rows[rows["step"] >= 10].groupby("rank")["num_tokens"].sum()
        shares[online] = late[0] / late.sum()
    assert 0.45 < shares[False] < 0.55
    assert shares[True] < 0.4
