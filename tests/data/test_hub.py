"""Data sets by their names on the hub, with and without network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpsched.data.config import DataConfig
from ddpsched.data.samples import load_dataset
from ddpsched.errors import DataError


def test_a_name_on_the_hub_gives_its_train_and_validation_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"sentence": ["a", "b", "c"], "label": [0, 1, 1], "idx": [0, 1, 2]})
    splits = datasets.DatasetDict(test=rows, train=rows.select([2, 0]), validation=rows.select([1]))
    asked: list[tuple[str, ...]] = []

    def answer(*args: str) -> datasets.DatasetDict:
        asked.append(args)
        return splits

    monkeypatch.setattr("ddpsched.data.hub._reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", answer)
    dataset = load_dataset(DataConfig(name="some/set", subset="part"), seed=0)
    assert asked == [("some/set", "part")]
    assert dataset.source == "some/set/part"
    assert (list(dataset.train.texts), dataset.train.labels.tolist()) == (["c", "a"], [1, 0])
    assert dataset.dev is not None
    assert list(dataset.dev.texts) == ["b"]
    with pytest.raises(DataError, match="some/set, train: no column 'text'; it has 'sentence', 'label', 'idx'"):
        load_dataset(DataConfig(name="some/set", text="text"), seed=0)


OFFLINE = """
import sys, time
from ddpsched.data.config import DataConfig
from ddpsched.data.samples import load_dataset
begin = time.perf_counter()
try:
    dataset = load_dataset(DataConfig(name="nyu-mll/glue", subset="sst2"), seed=0)
    print(len(dataset.train), dataset.train.labels.tolist(), len(dataset.dev), dataset.source)
except ValueError as error:
    print(type(error).__name__, error)
assert time.perf_counter() - begin < 10, "waited for the hub"
assert "torch" not in sys.modules
"""

PREPARED = """
import sys, pathlib, datasets
from datasets.arrow_writer import ArrowWriter
features = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(num_classes=2)})
folder = pathlib.Path(sys.argv[1], "datasets", "nyu-mll___glue", "sst2", "0.0.0", "0" * 40)
folder.mkdir(parents=True)
splits = {}
for name, n in (("train", 3), ("validation", 1)):
    with ArrowWriter(path=str(folder / f"glue-{name}.arrow"), features=features) as writer:
        for i in range(n):
            writer.write({"sentence": f"text {i}", "label": i % 2})
        writer.finalize()
    splits[name] = {"name": name, "num_examples": n, "num_bytes": 1, "dataset_name": "glue"}
datasets.DatasetInfo(
    features=features, builder_name="parquet", dataset_name="glue", config_name="sst2", version="0.0.0", splits=splits
).write_to_directory(str(folder))
"""


def run_offline(script: str, home: Path, *args: str, **env: str) -> str:
    # an address where nothing listens stands for a machine without network
    unreachable = {"HF_HOME": str(home), "HF_ENDPOINT": "http://127.0.0.1:9", **env}
    proxies = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "hf_hub_offline")
    kept = {key: value for key, value in os.environ.items() if key.lower() not in proxies}
    command = [sys.executable, "-c", script, *args]
    return subprocess.run(command, env=kept | unreachable, text=True, capture_output=True, check=True).stdout


def test_without_network_a_name_on_the_hub_fails_at_once_and_shows_the_ways_out(tmp_path: Path) -> None:
    printed = run_offline(OFFLINE, tmp_path)
    assert printed.startswith("DataError data.name = nyu-mll/glue/sst2")
    for way in ("data.path=FILE", "embedded", "HF_HUB_OFFLINE=1"):
        assert way in printed


@pytest.mark.parametrize(
    "env", [{}, pytest.param({"HF_HUB_OFFLINE": "1"}, marks=pytest.mark.slow)], ids=["unreachable", "HF_HUB_OFFLINE"]
)
def test_without_network_a_prepared_cache_works(tmp_path: Path, env: dict[str, str]) -> None:
    run_offline(PREPARED, tmp_path, str(tmp_path))
    assert run_offline(OFFLINE, tmp_path, **env).strip() == "3 [0, 1, 0] 1 nyu-mll/glue/sst2"
