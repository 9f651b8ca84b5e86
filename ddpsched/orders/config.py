"""[order]: the order in which an epoch visits the samples."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ddpsched.table import Positive, Table, Text


class OrderConfig(Table):
    """The order in which an epoch visits the samples."""

    kind: Literal["shuffled", "sequential", "length_grouped", "curriculum", "curriculum_local"] = "shuffled"
    """The order in which an epoch visits the samples."""
    mega_batches: Positive = 50
    """length_grouped: global batches sorted together, fewer where the data has fewer."""
    path: Text | None = None
    """curriculum, curriculum_local: a file of `ddpsched sort`, easiest first; None: by length."""
    window: Positive = 1
    """curriculum: runs of this many neighbours are shuffled anew each epoch."""
    pacing: Literal["linear", "root", "step"] | None = None
    """curriculum: growth of the share of samples that may be drawn, the easiest first; None: one after another."""
    start: Annotated[float, Field(gt=0, le=1)] = 0.1
    """pacing: the share that is open at first."""
    over: Annotated[float, Field(gt=0, le=1)] = 0.5
    """pacing: the share of the first epoch after which all is open."""
    stairs: Positive = 5
    """pacing = "step": the number of steps in which the share rises."""

    @model_validator(mode="after")
    def _belong_together(self) -> "OrderConfig":
        if self.kind != "length_grouped" and self.mega_batches != 50:
            raise ValueError(
                f"mega_batches = {self.mega_batches} belongs to kind = 'length_grouped', not {self.kind!r}; leave it "
                "out"
            )
        if self.path is not None and not self.kind.startswith("curriculum"):
            owners = "kind = 'curriculum' or 'curriculum_local'"
            raise ValueError(
                f"path = {self.path!r}, a file of `ddpsched sort`, belongs to {owners}, not {self.kind!r}; leave it out"
            )
        keys = ("window", "pacing", "start", "over", "stairs")
        changed = {key for key in keys if getattr(self, key) != type(self).model_fields[key].default}
        if changed and self.kind != "curriculum":
            raise ValueError(f"{', '.join(sorted(changed))} belong to kind = 'curriculum', not {self.kind!r}")
        if self.pacing is None and changed & {"start", "over", "stairs"}:
            raise ValueError(
                f"{', '.join(sorted(changed))} needs pacing, how the share of samples in use grows; set pacing = "
                "'linear', 'root' or 'step', or leave this out"
            )
        if self.pacing is not None and self.window > 1:
            raise ValueError("pacing draws from all open samples, window reshuffles neighbours: give one of the two")
        if self.stairs != 5 and self.pacing != "step":
            raise ValueError(f"stairs belongs to pacing = 'step', not {self.pacing!r}")
        return self

    @property
    def sorts(self) -> bool:
        """Whether neighbours of the order are about as difficult, so that ranks are dealt them in turn."""
        return self.kind in ("curriculum", "curriculum_local")
