"""[data]: the source of the samples, and how they are cut."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ddpsched.table import Length, Positive, Table, Text


class DataConfig(Table):
    """The source of the samples: a local ``path``, else a hub ``name``, else the embedded sentences.

    Where both are given, the path is the local copy of that data set and is read.
    """

    path: Text | None = None  # TSV, CSV, JSONL or Parquet file, or a folder of splits
    dev: Text | None = None  # a file for evaluation; by default a dev or validation split beside path
    name: Text | None = None  # data set on the hub, "nyu-mll/glue"
    subset: Text | None = None  # "sst2"
    text: Text = "sentence"  # the text to classify; for causal_lm the text to learn
    prompt: Text | None = None  # causal_lm: a column before the text that is not learnt, "question"
    label: Text = "label"  # classification
    num_labels: Annotated[int, Field(ge=2, le=2**16)] = 2
    # rows of a file that cannot be used: an error; or left out, and named in the run's quarantine.jsonl
    on_bad: Literal["error", "skip"] = "error"
    rows: Positive | None = None  # only this many rows of the training split, the first
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of the training rows evaluated on, without a dev split
    tokenizer: Text | None = None  # folder or hub name; by default the model's, or the embedded one
    max_length: Annotated[Length, Field(ge=3)] = 128
    lengths: Literal["known", "online"] = "known"
    size: Annotated[int, Field(gt=0, le=10**7)] = 4096  # samples of the embedded set
    pad_to: Literal["longest", "max_length"] = "longest"  # static: of its micro-batch, or always to max_length
    # causal_lm: all documents joined, and cut into samples of max_length tokens
    concatenate: bool = False
    within_documents: bool = False  # concatenate: tokens attend to their own document alone

    @model_validator(mode="after")
    def _belong_together(self) -> "DataConfig":
        if self.within_documents and not self.concatenate:
            raise ValueError("within_documents says how joined documents attend; set concatenate = true with it")
        if self.concatenate and self.lengths == "online":
            raise ValueError("concatenate joins all documents before training; use lengths = 'known'")
        if self.on_bad == "skip" and self.path is None:
            source = f"data.name = {self.name!r}" if self.name else "the embedded sentences"
            raise ValueError(f"on_bad = 'skip' leaves out rows of a file, but the data are {source}; give data.path")
        return self
