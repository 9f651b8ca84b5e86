"""How large each part is: on a GPU, and in a trial on a CPU that takes a minute or two."""

from dataclasses import dataclass

Setting = tuple[str, int, int]  # model, virtual ranks, samples of a step


@dataclass(frozen=True)
class Size:
    """``speed``: the settings whose arms run in turn. ``steps``: of each arm, by global batch.

    ``samples``: of the texts. ``compiled``: shapes of a menu; ``compiled_at``: of
    which setting. ``longest``: tokens of the long texts. ``layers``,
    ``width``, ``heads``, ``vocabulary``: of GPT-2's shape. ``classifier``: the model of the short texts.
    ``calibrated``: most padded tokens of a calibration. ``backend``: of torch.compile.
    """

    speed: tuple[Setting, ...]
    steps: tuple[tuple[int, int], ...]
    samples: int
    compiled: int
    compiled_at: Setting
    longest: int
    layers: int
    width: int
    heads: int
    vocabulary: int
    classifier: str
    calibrated: int
    backend: str

    def steps_of(self, global_batch: int) -> int:
        """Return the steps of an arm: fewer where they are larger."""
        return next(steps for most, steps in self.steps if global_batch <= most)


FULL = Size(
    speed=(
        ("distilbert", 4, 2048), ("gpt2", 4, 128), ("distilbert", 4, 32), ("distilbert", 8, 2048),
        ("distilbert", 8, 32),
    ),
    steps=((32, 30), (128, 12), (2048, 14)), samples=16384, compiled=2,
    compiled_at=("distilbert", 4, 32), longest=1024, layers=4, width=768, heads=12, vocabulary=50257,
    classifier="distilbert-base-uncased", calibrated=32768, backend="inductor",
)  # fmt: skip
SMOKE = Size(
    speed=(("distilbert", 2, 8), ("gpt2", 2, 8)),
    steps=((2048, 4),), samples=128, compiled=2, compiled_at=("distilbert", 2, 8),
    longest=48, layers=1, width=32, heads=2, vocabulary=512,
    classifier="tiny", calibrated=256, backend="aot_eager",
)  # fmt: skip
