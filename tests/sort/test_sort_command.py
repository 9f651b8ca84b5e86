"""``ddpsched sort`` as it is called: real files, real ranks under torchrun, resumed, killed, and used by a run."""

import json
import linecache
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.data.embedded.sentences import compose, embedded_tokenizer
from ddpsched.data.order_file import OrderedFile
from ddpsched.sort.parts import Parts

SIZE = 300


def write_data(folder: Path, size: int = SIZE) -> list[str]:
    """A TSV of sentences with scores, and the tokenizer that knows their words."""
    texts, labels = compose(size, 0)
    folder.mkdir(exist_ok=True)
    rows = [f"{text}\t{label}\t{i % 7}" for i, (text, label) in enumerate(zip(texts, labels, strict=True))]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel\tscore", *rows]) + "\n", encoding="utf-8")
    embedded_tokenizer().save(str(folder / "tokenizer.json"))
    return list(texts)


def lengths_of(texts: list[str]) -> np.ndarray:
    return np.array([len(encoding.ids) for encoding in embedded_tokenizer().encode_batch(texts)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_data(folder := tmp_path / "data")
    return folder


def call(*words: Any) -> Any:
    return CliRunner().invoke(app, ["sort", *map(str, words)])


def torchrun(ranks: int, folder: Path, *words: Any, wait: bool = True, **environment: str) -> Any:
    """Started in ``folder``, where modules of one's own are found."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    process = subprocess.Popen(
        [*command, "-m", "ddpsched", "sort", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, **environment},
    )  # fmt: skip
    if not wait:
        return process
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_by_length(data: Path, tmp_path: Path) -> None:
    result = call(data, f"data.tokenizer={data}", "--output", tmp_path / "order.npy", "--chunk", 64)
    assert result.exit_code == 0, result.output
    assert f"{SIZE} samples of train.tsv, 1 rank\nlength: " in result.output
    file = OrderedFile.open(tmp_path / "order.npy")
    lengths = lengths_of(write_data(data))
    np.testing.assert_array_equal(file.ids(), np.argsort(lengths, kind="stable"))
    np.testing.assert_array_equal(file.rows()["length"], np.sort(lengths))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "order.npy"], "no parts are left"


def test_ranks_write_the_same_bytes(data: Path, tmp_path: Path) -> None:
    """Two metrics, of which one follows from the tokens of all samples."""
    words = [data, f"data.tokenizer={data}", "--metric", "column:score", "--metric", "rarity", "--chunk", 32]
    alone = call(*words, "--output", tmp_path / "alone.npy")
    assert alone.exit_code == 0, alone.output
    code, out, err = torchrun(3, tmp_path, *words, "--output", tmp_path / "three.npy")
    assert code == 0, err
    assert "3 ranks" in out
    assert out.count("largest bucket") == 1, "one rank speaks"
    assert (tmp_path / "three.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()
    rows = OrderedFile.open(tmp_path / "three.npy").rows()
    assert rows.dtype.names == ("column:score", "rarity", "id")
    assert (rows["id"] % 7 == rows["column:score"]).all()
    for score in range(7):
        assert (np.diff(rows["rarity"][rows["column:score"] == score]) >= 0).all(), "the second breaks the first's ties"


def test_what_was_measured_is_kept(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that ends in the middle; the next one measures the other chunks alone, whatever its ranks."""
    output, measured = tmp_path / "order.npy", []
    write = Parts.write

    def fail_at_third(self: Parts, chunk: int, arrays: Any) -> None:
        if chunk == 3:
            raise OSError(28, "No space left on device")
        measured.append(chunk)
        write(self, chunk, arrays)

    words = [data, f"data.tokenizer={data}", "--output", output, "--chunk", 32]
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "write", fail_at_third)
        failed = call(*words)
    assert failed.exit_code == 1
    assert "no space left" in failed.output
    assert measured == [0, 1, 2]
    assert not output.exists()
    code, out, err = torchrun(2, tmp_path, *words)
    assert code == 0, err
    assert "(3 chunks of an earlier attempt were kept)" in out
    again = call(*words[:-2], "--overwrite", "--chunk", 32)
    assert again.exit_code == 0
    assert "earlier attempt" not in again.output


def test_parts_of_other_data_are_not_used(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [data, f"data.tokenizer={data}", "--output", tmp_path / "order.npy", "--chunk", 32]
    with monkeypatch.context() as patch:
        patch.setattr("ddpsched.sort.command.OrderedWriter", None)  # ends after all chunks are measured
        with pytest.raises(TypeError):
            CliRunner().invoke(app, ["sort", *map(str, words)], catch_exceptions=False)
    text = (data / "train.tsv").read_text(encoding="utf-8").splitlines()
    (data / "train.tsv").write_text("\n".join([text[0], *text[:0:-1]]) + "\n", encoding="utf-8")
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "earlier attempt" not in result.output


SLOW = """
import time, os, signal
def slow(columns):
    if os.environ["RANK"] == "1" and os.path.exists("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return [len(text) for text in columns["sentence"]]
"""


@pytest.mark.slow
def test_a_killed_rank_leaves_nothing_under_the_final_name(data: Path, tmp_path: Path) -> None:
    (tmp_path / "slow_of_this_test.py").write_text(SLOW)
    (tmp_path / "kill").touch()
    output = tmp_path / "order.npy"
    words = [data, "--output", output, "--metric", "slow_of_this_test:slow", "--chunk", 20]
    code, _, _ = torchrun(2, tmp_path, *words)
    assert (code != 0, output.exists()) == (True, False)


@pytest.mark.slow
def test_a_rank_killed_while_writing(data: Path, tmp_path: Path) -> None:
    """The second rank dies with half of its slice on the disk."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        "if os.environ.get('RANK') == '1':\n"
        "    from ddpsched.data import order_file\n"
        "    def die(self, start, columns):\n"
        "        self.aside.open('r+b').write(b'half')\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    order_file.OrderedWriter.write = die\n"
    )
    output = tmp_path / "order.npy"
    output.write_bytes(b"the old one")
    words = [data, f"data.tokenizer={data}", "--output", output, "--overwrite"]
    code, _, _ = torchrun(2, tmp_path, *words, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert code != 0
    assert output.read_bytes() == b"the old one"
    assert not (tmp_path / ".order.npy.part").exists()
    assert call(*words).exit_code == 0
    assert len(OrderedFile.open(output)) == SIZE


def wait_for_parts(folder: Path, more_than: int) -> None:
    """Until so many chunks are measured; half a minute at most."""
    for _ in range(300):
        if len(list(folder.glob("*.npz"))) > more_than:
            return
        time.sleep(0.1)
    raise AssertionError(f"{folder}: no more than {more_than} chunks were measured")


@pytest.mark.slow
def test_one_command_at_a_time(data: Path, tmp_path: Path) -> None:
    """A second one on the same output is refused, and takes nothing of the first one's away."""
    (tmp_path / "slow_of_this_test.py").write_text(SLOW)
    output = tmp_path / "order.npy"
    words = [data, "--output", output, "--metric", "slow_of_this_test:slow", "--chunk", 20]
    process = torchrun(2, tmp_path, *words, wait=False)
    parts = tmp_path / ".order.npy.parts"
    wait_for_parts(parts, 1)
    result = call(data, f"data.tokenizer={data}", "--output", output, "--chunk", 7)
    assert result.exit_code == 1
    assert "another `ddpsched sort` is writing it" in " ".join(result.output.split())
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(OrderedFile.open(output)) == SIZE
    assert call(data, f"data.tokenizer={data}", "--output", output, "--chunk", 7, "--overwrite").exit_code == 0


def test_a_damaged_part_is_measured_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [data, f"data.tokenizer={data}", "--output", tmp_path / "order.npy", "--chunk", 64]
    with monkeypatch.context() as patch:
        patch.setattr("ddpsched.sort.command.OrderedWriter", None)
        assert call(*words).exit_code == 1
    (tmp_path / ".order.npy.parts" / "000000001.npz").write_bytes(b"no part")
    result = call(*words)
    assert result.exit_code == 1
    assert "was damaged and is removed; run the command again to measure it" in " ".join(result.output.split())
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "(4 chunks of an earlier attempt were kept)" in result.output


def test_asked_to_stop(data: Path, tmp_path: Path) -> None:
    (tmp_path / "slow_of_this_test.py").write_text(SLOW)
    output = tmp_path / "order.npy"
    words = [data, "--output", output, "--metric", "slow_of_this_test:slow", "--chunk", 2]
    process = torchrun(2, tmp_path, *words, wait=False)
    parts = tmp_path / ".order.npy.parts"
    wait_for_parts(parts, 3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert not output.exists()
    assert len(list(parts.glob("*.npz"))) > 3, "what was measured is kept"


def config_of(folder: Path, data: Path, order: Path, **data_keys: Any) -> list[str]:
    table = {"path": str(data), "tokenizer": str(data), **data_keys}
    lines = ["epochs = 1", "world_size = 2", "global_batch = 16", f'outputs = "{folder}/outputs"']
    lines += ['[policy]\nkind = "static"', f'[order]\nkind = "curriculum"\npath = "{order}"', "[data]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    lines += ['[executor]\nkind = "simulated"']
    (folder / "run.toml").write_text("\n".join(lines))
    return ["run", str(folder / "run.toml"), "--overwrite"]


@pytest.mark.parametrize(
    "keys", [{}, {"rows": 100}, {"held_out": 0.25}, {"rows": 200, "held_out": 0.1, "lengths": "online"}], ids=str
)
def test_a_run_follows_the_file(data: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    """Whatever of the data is cut off or held out; here easier is what has the lower score."""
    assert call(data, "--output", tmp_path / "order.npy", "--metric", "column:score").exit_code == 0
    words = config_of(tmp_path, data, tmp_path / "order.npy", **keys)
    if keys.get("lengths") == "online":
        words += ["executor.kind=virtual", "policy.kind=minmax"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    records = pd.read_parquet(tmp_path / "outputs" / "runs" / "run" / "records.parquet")
    size = min(SIZE, keys.get("rows", SIZE))
    size -= round(size * keys.get("held_out", 0))
    assert records["num_samples"].sum() == size


def test_files_of_other_data_are_refused(data: Path, tmp_path: Path) -> None:
    assert call(data, "--output", tmp_path / "order.npy", "--metric", "column:score").exit_code == 0
    with (data / "train.tsv").open("a", encoding="utf-8") as file:
        file.write("one more\t1\t3\n")
    result = CliRunner().invoke(app, config_of(tmp_path, data, tmp_path / "order.npy"))
    assert result.exit_code == 1
    assert "is an order of other data" in result.output
    assert not (tmp_path / "outputs").exists()


def test_metrics_that_changed_are_measured_anew(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function's code between two tries; samples that were cut are counted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [data, f"data.tokenizer={data}", "data.max_length=10", "--output", tmp_path / "order.npy"]
    words += ["--metric", "length", "--metric", "mine_that_changes:score", "--chunk", 64]
    (tmp_path / "mine_that_changes.py").write_text("def score(columns): return [0] * len(columns['sentence'])\n")
    with monkeypatch.context() as patch:
        patch.setattr("ddpsched.sort.command.OrderedWriter", None)
        assert call(*words).exit_code == 1
    code = "def score(columns): return [-len(text) for text in columns['sentence']]  # now the longest text first\n"
    (tmp_path / "mine_that_changes.py").write_text(code)
    sys.modules.pop("mine_that_changes")
    linecache.clearcache()
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "earlier attempt" not in result.output
    longer = int((lengths_of(write_data(data)) > 10).sum())
    assert f"{longer} samples were longer than data.max_length, and count as cut to it" in result.output
    rows = OrderedFile.open(tmp_path / "order.npy").rows()
    assert rows["length"].max() == 10
    assert (np.diff(rows["mine_that_changes:score"][rows["length"] == 10]) >= 0).all()
    assert np.ptp(rows["mine_that_changes:score"]) > 0


def test_numbers_and_a_runs_config(data: Path, tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 99, 500)
    np.save(tmp_path / "lengths.npy", lengths)
    assert call(tmp_path / "lengths.npy", "--output", tmp_path / "order.npy", "--chunk", 64).exit_code == 0
    np.testing.assert_array_equal(OrderedFile.open(tmp_path / "order.npy").ids(), np.argsort(lengths, kind="stable"))
    (tmp_path / "lengths.txt").write_text("\n".join(map(str, lengths)))
    assert call(tmp_path / "lengths.txt", "--output", tmp_path / "text.npy").exit_code == 0
    np.testing.assert_array_equal(OrderedFile.open(tmp_path / "text.npy").ids(), np.argsort(lengths, kind="stable"))
    config_of(tmp_path, data, tmp_path / "none.npy")
    result = call(tmp_path / "run.toml", "--output", tmp_path / "third.npy")
    assert result.exit_code == 0, result.output
    assert len(OrderedFile.open(tmp_path / "third.npy")) == SIZE


def test_bad_input(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "order.npy"
    (data / "holes.jsonl").write_text('{"s": 1}\n{"s": null}\n{"s": NaN}\n{"t": 3}\n')
    (data / "mixed.jsonl").write_text('{"s": 1}\n{"s": "hard"}\n')
    (data / "blank.tsv").write_text("sentence\na film\n \n")
    (data / "empty.tsv").write_text("sentence\n")
    (tmp_path / "there.npy").touch()
    np.save(tmp_path / "square.npy", np.zeros((2, 2)))
    for words, message in (
        ([data, "--output", output], "has no tokenizer for your texts"),
        (
            [data / "holes.jsonl", "--metric", "column:s", "--output", output],
            "3 samples have no number.*rows, from 1: 2, 3, 4",
        ),
        ([data / "mixed.jsonl", "--metric", "column:s", "--output", output], "row 2, column 's': 'hard' is str"),
        ([data / "blank.tsv", f"data.tokenizer={data}", "--output", output], "row 2, column 'sentence'.*write a text"),
        ([data / "empty.tsv", f"data.tokenizer={data}", "--output", output], "no rows to sort"),
        ([data, "--metric", "column:sccore", "--output", output], "no column 'sccore'.*did you mean"),
        ([data, "--metric", "lenght", "--output", output], "is none of length, rarity"),
        ([data / "none.tsv", "--output", output], "no such file or folder"),
        ([tmp_path / "none.npy", "--output", output], "no such file"),
        ([tmp_path / "square.npy", "--output", output], "not a flat array of numbers"),
        ([tmp_path / "square.npy", "--metric", "length", "--output", output], "holds numbers, which are the metric"),
        ([data, "--output", tmp_path / "no" / "order.npy"], "there is no folder"),
        ([data, "--output", tmp_path], "is a folder"),
        ([data, "--output", tmp_path / "order.txt"], "give it the suffix .npy"),
        ([data, "--output", tmp_path / "there.npy"], "is there already.*--overwrite"),
        ([data, "data.texxt=a", "--output", output], "unknown key data.texxt"),
    ):
        result = call(*words)
        assert result.exit_code == 1, words
        assert re.search(message, " ".join(result.output.split())), (message, result.output)
        assert not output.exists()
    assert not (tmp_path / ".order.npy.parts").exists(), "nothing was measured, nothing is left"


def test_sorting_imports_no_torch(data: Path, tmp_path: Path) -> None:
    words = ["sort", str(data), f"data.tokenizer={data}", "--output", str(tmp_path / "order.npy")]
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom ddpsched.cli import app\n"
        f"result = CliRunner().invoke(app, {words!r})\n"
        "assert result.exit_code == 0, result.output\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
