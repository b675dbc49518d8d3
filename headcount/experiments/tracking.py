"""Learning curves for TensorBoard, written as trials end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headcount.config import BadInput, file_errors
from headcount.experiments.store import Store
from headcount.experiments.trial import Trial

Progress = Callable[[int, int, str], None]

LOOK_SECONDS = 10.0
"""How often the store is looked at for trials that have ended."""

SCALARS = {"loss": "loss/batch", "error": "error/validation", "train_error": "error/train", "test_error": "error/test"}


class TensorBoard:
    """One folder a trial, named TASK-MECHANISM-Hn-seed-ID, with the scalars of its curve and its configuration."""

    def __init__(self, folder: str | Path, store: Store, trials: Sequence[Trial]) -> None:
        """Track `trials` of `store`.

        Raises:
            BadInput: if TensorBoard is not installed or the folder cannot be written.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BadInput("--tensorboard needs TensorBoard; install it with: pip install tensorboard") from None
        self.folder, self.store, self._writer = Path(folder), store, SummaryWriter
        with file_errors(folder, f"'{folder}' cannot be used for TensorBoard"):
            self.folder.mkdir(parents=True, exist_ok=True)
        self.waiting = {trial.id: trial for trial in trials if not self._place(trial).exists()}
        self._looked = time.monotonic()

    def _place(self, trial: Trial) -> Path:
        fields = trial.flat()
        heads = fields.get("model.heads", 1)
        return self.folder / f"{trial.task.name}-{fields['model.attention']}-H{heads}-{trial.seed}-{trial.id}"

    def following(self, on_progress: Progress) -> Progress:
        """`on_progress` that also writes what has ended, every LOOK_SECONDS."""

        def both(done: int, total: int, label: str) -> None:
            on_progress(done, total, label)
            if time.monotonic() - self._looked > LOOK_SECONDS:
                self._looked = time.monotonic()
                self.write()

        return both

    def write(self) -> int:
        """Write the curves of trials that have ended since the last call; returns how many."""
        ended = [key for key, status in self.store.statuses(self.waiting).items() if status == "done"]
        if not ended:
            return 0
        curves = self.store.curves(ended)
        for key, points in curves.groupby("id", sort=False):
            trial = self.waiting.pop(str(key))
            with self._writer(str(self._place(trial))) as writer:
                writer.add_text("configuration", trial.to_json())
                for name, tag in SCALARS.items():
                    for step, value in points[["step", name]].dropna().itertuples(index=False):
                        writer.add_scalar(tag, value, int(step))
        return len(ended)
