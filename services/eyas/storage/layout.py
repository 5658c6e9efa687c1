"""Where the parts of a run lie: every key, relative to the storage."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunLayout:
    """Keys of the run named `run`. Names without a file's suffix are prefixes, without a slash at their end."""

    run: str

    @property
    def spec(self) -> str:
        """What was asked. Written last by the import: without it there is no run."""
        return f"{self.run}/spec.json"

    @property
    def samples(self) -> str:
        """Prefix of the samples' parts."""
        return f"{self.run}/samples"

    def samples_part(self, number: int) -> str:
        """A part of the samples, from 0."""
        return f"{self.samples}/{number:06d}.parquet"

    @property
    def rejected(self) -> str:
        """Rows of the dataset that could not be imported: one table."""
        return f"{self.run}/rejected.parquet"

    @property
    def generations(self) -> str:
        """Prefix of the log of answers."""
        return f"{self.run}/generations"

    @property
    def failures(self) -> str:
        """Prefix of the log of items given up."""
        return f"{self.run}/failures"

    @property
    def control(self) -> str:
        """Prefix of the log of what was asked of the running system."""
        return f"{self.run}/control"

    @property
    def partials(self) -> str:
        """The partial answers: one table, a hint."""
        return f"{self.run}/partials"

    @property
    def hidden_states_prefix(self) -> str:
        """Prefix of all hidden states."""
        return f"{self.run}/hidden_states"

    def hidden_states(self, key: str) -> str:
        """Hidden states of one sequence; `key` is the hash of its ids."""
        return f"{self.hidden_states_prefix}/{key}.safetensors"

    def training(self, settings_hash: str) -> str:
        """Prefix of one training: checkpoints, steps, summary."""
        return f"{self.run}/training/{settings_hash}"

    def training_steps(self, settings_hash: str) -> str:
        """Prefix of the log of a training's steps."""
        return f"{self.training(settings_hash)}/steps"

    def training_summary(self, settings_hash: str) -> str:
        """What one training did."""
        return f"{self.training(settings_hash)}/summary.json"

    @property
    def drafter(self) -> str:
        """Prefix of the exported drafter."""
        return f"{self.run}/drafter"

    @property
    def drafter_manifest(self) -> str:
        """Written last by an export: without it there is no drafter."""
        return f"{self.drafter}/manifest.json"

    @property
    def evaluation(self) -> str:
        """Prefix of the measurements."""
        return f"{self.run}/evaluation"

    @property
    def evaluation_result(self) -> str:
        """What was measured."""
        return f"{self.evaluation}/result.json"

    def measurement(self, drafter: str) -> str:
        """What was measured with one drafter, its answers included."""
        return f"{self.evaluation}/{drafter}.json"

    @property
    def report(self) -> str:
        """The report for people."""
        return f"{self.run}/report.html"
