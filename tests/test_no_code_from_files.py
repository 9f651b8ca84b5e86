"""No file that a config, a data set or a checkpoint names runs code: no pickle, no script, one message each."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.config import parse
from ddpsched.data.config import DataConfig
from ddpsched.data.length_files import read_lengths
from ddpsched.data.order_file import OrderedFile
from ddpsched.data.samples import load_dataset
from ddpsched.data.tokenizer import load_tokenizer
from ddpsched.errors import ConfigError, DataError
from ddpsched.recovery.start import find_start, identity_of

ROOT = Path(__file__).parents[1]


class Opener:
    """A value that makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.marker), "w")


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Return a file that exists once any of the others' code has run."""
    return tmp_path / "marker"


def script(marker: Path) -> str:
    return f"open({str(marker)!r}, 'w').close()\nclass Code:\n    pass\n"


def test_the_fixtures_run_code_where_they_are_let(tmp_path: Path, marker: Path) -> None:
    pickle.loads(pickle.dumps(Opener(marker))).close()
    assert marker.exists()
    marker.unlink()
    exec(script(marker))
    assert marker.exists()


@pytest.mark.parametrize("name", ["data.pkl", "data.pt", "data.npy", "data.npz", "data.bin", "data.py", "data.yaml"])
def test_data_files(tmp_path: Path, marker: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix in (".npy", ".npz"):
        (np.save if path.suffix == ".npy" else np.savez)(path, np.array([Opener(marker)] * 3, dtype=object))
    elif path.suffix == ".py":
        path.write_text(script(marker))
    elif path.suffix == ".yaml":
        path.write_text(f"!!python/object/apply:builtins.open ['{marker}', 'w']")
    else:
        path.write_bytes(pickle.dumps(Opener(marker)))
    for read in (
        lambda: load_dataset(DataConfig(path=str(path)), 0), lambda: read_lengths(path),
        lambda: load_dataset(DataConfig(dev=str(path)), 0), lambda: OrderedFile.open(path),
        lambda: load_tokenizer(str(path)),
    ):  # fmt: skip
        with pytest.raises(DataError) as caught:
            read()
        assert path.name in str(caught.value)
    for command in (["plan", str(path), "--world-size", "2", "--global-batch", "4"],
                    ["sort", str(path), "--output", str(tmp_path / "o.npy")],
                    ["run", str(path)]):  # fmt: skip
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1
        assert result.output.startswith("error: ")
        assert "Traceback" not in result.output
    assert not marker.exists()


@pytest.mark.parametrize("key", ["cost", "memory"])
def test_calibrations(tmp_path: Path, marker: Path, key: str) -> None:
    path = tmp_path / "device.json"
    path.write_bytes(pickle.dumps(Opener(marker)))
    values: dict[str, Any] = {"steps": 1, "cost": {"kind": "calibrated", "path": str(path)}}
    if key == "memory":
        values = {"steps": 1, "memory": {"path": str(path), "budget_bytes": 10**9}}
    with pytest.raises((ConfigError, DataError), match=r"device\.json"):
        parse(values).plan_spec([1] * 4)
    assert not marker.exists()


def test_a_saved_data_set_with_a_script(tmp_path: Path, marker: Path) -> None:
    folder = tmp_path / "saved"
    columns = {"sentence": ["a", "b"], "label": [0, 1]}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(columns)}).save_to_disk(str(folder))
    for name in ("saved.py", "dataset.py", "train/saved.py"):
        (folder / name).write_text(script(marker))
    info = folder / "train" / "dataset_info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "builder_name": "saved"}))
    assert len(load_dataset(DataConfig(path=str(folder)), 0).train) == 2
    only = tmp_path / "only"
    only.mkdir()
    (only / "only.py").write_text(script(marker))
    with pytest.raises(DataError, match="no train file"):
        load_dataset(DataConfig(path=str(only)), 0)
    with pytest.raises(DataError, match=r"data\.name"):
        load_dataset(DataConfig(name=str(only)), 0)
    assert not marker.exists()


def test_a_checkpoint_with_a_pickle(tmp_path: Path, marker: Path) -> None:
    train = {"checkpoint_every": 2}
    config = parse({"steps": 4, "outputs": str(tmp_path), "policy": {"kind": "static"}, "train": train})
    folder = config.run_dir / "checkpoints" / "step-00000002"
    folder.mkdir(parents=True)
    for name in ("state.json", "manifest.json", "model.safetensors", "model.pt", "optimizer.pkl"):
        (folder / name).write_bytes(pickle.dumps(Opener(marker)))
    with pytest.raises(DataError, match=r"every checkpoint is damaged .*manifest\.json"):
        find_start(config.run_dir, identity_of(config, config.load_samples()))
    assert not marker.exists()


def test_tensors_that_are_a_pickle(tmp_path: Path, marker: Path) -> None:
    import torch

    from ddpsched.training.state import restore

    model = torch.nn.Linear(2, 2)
    for name in ("weights.safetensors", "optimizer.safetensors"):
        (tmp_path / name).write_bytes(pickle.dumps(Opener(marker)))
    with pytest.raises(DataError, match=r"weights\.safetensors"):
        restore(model, torch.optim.AdamW(model.parameters()), tmp_path)
    assert not marker.exists()


def model_folder(path: Path, marker: Path, **more: Any) -> Path:
    """Write a model's folder whose weights, configuration and tokenizer would all run code."""
    path.mkdir()
    code = {"AutoConfig": "code.Code", "AutoModel": "code.Code", "AutoModelForSequenceClassification": "code.Code"}
    (path / "config.json").write_text(json.dumps({"model_type": "distilbert", "auto_map": code, **more}))
    (path / "code.py").write_text(script(marker))
    (path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["code.Code", None]}}))
    for name in ("pytorch_model.bin", "training_args.bin"):
        (path / name).write_bytes(pickle.dumps(Opener(marker)))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (path / "vocab.txt").write_text("\n".join(words))
    return path


@pytest.mark.parametrize("weights", ["pretrained", "random"])
@pytest.mark.parametrize("kind", ["distilbert", "unknown"])
def test_a_model_folder(tmp_path: Path, marker: Path, weights: str, kind: str) -> None:
    from ddpsched.config import ModelConfig
    from ddpsched.training.model import build_model

    shape = {"dim": 8, "n_heads": 2, "n_layers": 1, "hidden_dim": 8, "vocab_size": 8} if kind == "distilbert" else {}
    folder = model_folder(tmp_path / "model", marker, **shape)
    if kind == "unknown":
        values = json.loads((folder / "config.json").read_text()) | {"model_type": "code"}
        (folder / "config.json").write_text(json.dumps(values))
    assert load_tokenizer(str(folder)).get_vocab_size() == 6
    config = ModelConfig(name=str(folder), weights=weights)  # type: ignore[arg-type]
    if (weights, kind) == ("random", "distilbert"):  # transformers' own class, and no file but config.json
        assert type(build_model(config, 2, 6, 0)).__module__.startswith("transformers.")
    else:
        with pytest.raises(DataError, match="could not be loaded"):
            build_model(config, 2, 6, 0)
    assert not marker.exists()


def test_the_command_says_so_in_one_message(tmp_path: Path, marker: Path) -> None:
    folder = model_folder(tmp_path / "model", marker, dim=8, n_heads=2, n_layers=1, hidden_dim=8, vocab_size=8)
    config = tmp_path / "c.toml"
    config.write_text(
        f'steps = 1\nworld_size = 1\noutputs = "{tmp_path}"\npolicy.kind = "static"\n'
        f'model.name = "{folder}"\nmodel.weights = "pretrained"\ndata.tokenizer = "{folder}"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "ddpsched", "run", str(config)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1
    assert "could not be loaded" in done.stderr
    assert not marker.exists()


def test_no_file_of_the_package_opens_a_pickle_or_trusts_code() -> None:
    for room in ("ddpsched", "analysis", "report", "experiments"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for word in ("allow_pickle=True", "trust_remote_code=True", "pickle.load(", "torch.load(", "yaml.load"):
                assert word not in text, f"{path}: {word}"
