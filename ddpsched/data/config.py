"""[data]: the source of the samples, and how they are cut."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ddpsched.table import Length, Positive, Table, Text


class DataConfig(Table):
    """The source of the samples: a local ``path``, else a hub ``name``, else the embedded sentences.

    Where both are given, the path is the local copy of that data set and is read.
    """

    path: Text | None = None
    """A TSV, CSV, JSON-lines or Parquet file, or a folder of splits."""
    dev: Text | None = None
    """A file to evaluate on; by default a dev or validation split beside path."""
    name: Text | None = None
    """A data set on the hub, as "nyu-mll/glue"."""
    subset: Text | None = None
    """Its configuration, as "sst2"."""
    text: Text = "sentence"
    """The column to classify; for causal_lm the column to learn."""
    prompt: Text | None = None
    """causal_lm: a column before the text that is not learnt, as "question"."""
    group: Text | None = None
    """causal_lm: a column whose equal values make a group, as train.target = "group_mean" asks for."""
    label: Text = "label"
    """classification: the column of labels."""
    num_labels: Annotated[int, Field(ge=2, le=2**16)] = 2
    """classification: the number of labels, from 0."""
    on_bad: Literal["error", "skip"] = "error"
    """Rows of a file that cannot be used: an error; or left out, and named in the run's quarantine.jsonl."""
    rows: Positive | None = None
    """The first so many rows of the training split; None: all."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the training rows that is evaluated on, where there is no dev split."""
    tokenizer: Text | None = None
    """A folder or hub name; by default the model's, or the embedded one."""
    max_length: Annotated[Length, Field(ge=3)] = 128
    """Tokens to which samples are cut."""
    lengths: Literal["known", "online"] = "known"
    """Known before training, or online: each rank tokenises what comes next."""
    size: Annotated[int, Field(gt=0, le=10**7)] = 4096
    """Samples of the embedded set, where neither path nor name is given."""
    pad_to: Literal["longest", "max_length"] = "longest"
    """static: pad to the longest sample of a micro-batch, or always to max_length."""
    concatenate: bool = False
    """causal_lm: join all documents, and cut them into samples of max_length tokens."""
    within_documents: bool = False
    """concatenate: tokens attend to their own document alone."""

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
