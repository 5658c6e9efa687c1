"""The options that commands share. One that is a setting of the run names it, so that a command only lists them."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from eyas.errors import InputError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2 as pb


@dataclass(frozen=True)
class Setting:
    """An option that sets something in the spec."""

    name: str
    """As typed, such as `--max-tokens`."""
    path: str
    """In the spec, such as `generation.maxTokens`."""
    kind: Any
    help: str
    read: Callable[[Any], Any] = lambda value: value
    """Turns what was typed into what the spec holds."""
    metavar: str | None = None

    @property
    def parameter(self) -> str:
        """Name as an argument of Python."""
        return self.name.removeprefix("--").replace("-", "_")

    def signature(self) -> inspect.Parameter:
        """As typer reads it."""
        option = typer.Option(None, self.name, help=self.help, metavar=self.metavar, show_default=False)
        kind = self.kind | None
        return inspect.Parameter(self.parameter, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def accepting(*settings: Setting) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options. What was typed arrives as `given`: path in the spec to value."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(**arguments: Any) -> None:
            typed = {setting: arguments.pop(setting.parameter) for setting in settings}
            given = {
                setting.path: setting.read(value)
                for setting, value in typed.items()
                if value is not None and value != []
            }
            command(given=given, **arguments)

        own = inspect.signature(command, eval_str=True)
        kept = [parameter for name, parameter in own.parameters.items() if name != "given"]
        parameters = [*kept, *(setting.signature() for setting in settings)]
        call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def _json(name: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise InputError(f"{name} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise InputError(f"{name} must be a JSON object, such as '{{\"temperature\": 0.7}}'")
        return value

    return read


def _sampling(text: str) -> dict[str, Any]:
    fields = pb.Sampling.DESCRIPTOR.fields_by_name
    value = _json("--sampling-params")(text)
    return {fields[name].json_name if name in fields else name: item for name, item in value.items()}


def _endpoints(urls: list[str]) -> list[dict[str, str]]:
    return [{"url": url.rstrip("/").removesuffix("/v1")} for url in urls]


def _layers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError as error:
        raise InputError(f"--target-layer-ids is {text!r}: write layers as 2,15,27,30") from error


def local_path(text: str) -> str:
    """A path that exists, made absolute, so that every process finds it; anything else as it is."""
    path = Path(text).expanduser()
    return str(path.absolute()) if path.exists() else text


MODEL = (
    Setting("--model", "model.uri", str, "Folder or repository of the model, as vLLM takes it.", local_path, "PATH"),
    Setting("--served-model-name", "model.servedName", str, "Name under which the endpoint serves it.", metavar="NAME"),
    Setting(
        "--endpoint",
        "endpoints",
        list[str],
        "Base address of a vLLM that serves the model; repeat for several. Without one, a vLLM is launched.",
        _endpoints,
        "URL",
    ),
)
DATA = (
    Setting(
        "--dataset",
        "dataset.sources",
        list[str],
        "JSONL, JSON or Parquet, or a folder of them; repeat for several.",
        lambda paths: [local_path(path) for path in paths],
        "PATH",
    ),
    Setting("--max-samples", "dataset.maxSamples", int, "Keep at most so many conversations."),
    Setting("--shuffle-seed", "dataset.shuffleSeed", int, "Shuffle before --max-samples, with this seed."),
    Setting("--turns", "dataset.turns", str, "Answer the `first` user turn (default), or `all` of them."),
)
GENERATE = (
    Setting(
        "--protocol", "generation.protocol", str, "`tokens` (default), or `chat` for any OpenAI-compatible server."
    ),
    Setting("--max-tokens", "generation.maxTokens", int, "Most tokens of an answer."),
    Setting("--concurrency", "generation.concurrency", int, "Requests at once, for each endpoint."),
    Setting(
        "--sampling-params",
        "generation.sampling",
        str,
        "How tokens are drawn, e.g. '{\"temperature\": 0.7}'.",
        _sampling,
        "JSON",
    ),
    Setting(
        "--chat-template-kwargs",
        "generation.chatTemplateKwargs",
        str,
        "Arguments of the chat template.",
        lambda text: json.dumps(_json("--chat-template-kwargs")(text), sort_keys=True),
        "JSON",
    ),
)
EXTRACT = (
    Setting(
        "--target-layer-ids",
        "hiddenStates.layerIds",
        str,
        "Three layers that the drafter sees, and the model's last, e.g. 2,15,27,30.",
        _layers,
        "IDS",
    ),
)
TRAIN = (
    Setting("--ttt-steps", "training.tttSteps", int, "Training-time test steps."),
    Setting("--ttt-step-loss-decay", "training.tttStepLossDecay", float, "Weight of step k is this to the power k."),
    Setting("--total-seq-len", "training.totalSeqLen", int, "Tokens packed into one row of a batch."),
    Setting("--epochs", "training.epochs", float, "Passes over the data."),
    Setting("--lr", "training.lr", float, "Peak learning rate."),
    Setting("--from-pretrained", "training.fromPretrained", str, "Drafter to start from.", local_path, "PATH"),
    Setting("--draft-vocab-size", "training.draftVocabSize", int, "Ids that the drafter can draft; 0 for all."),
)
EVALUATE = (Setting("--num-speculative-tokens", "evaluation.numSpeculativeTokens", int, "Tokens drafted a step."),)

Output = Annotated[
    str, typer.Option("--output", "-o", help="Folder of the run, such as out/demo, or s3://bucket/prefix/demo.")
]
Existing = Annotated[str, typer.Argument(metavar="OUTPUT", help="Folder of the run, as given to --output.")]
SpecFile = Annotated[
    Path | None, typer.Option("--file", "-f", help="run.yaml with any of the run's settings; options override it.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATH=VALUE]...", help="Any setting of the run, such as training.lr=5e-5.", show_default=False
    ),
]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="The same as PATH=VALUE.")]
Holdout = Annotated[
    list[str] | None,
    typer.Option(
        "--holdout",
        metavar="N|PATH",
        help="Keep N conversations, or all of a file, for evaluation: never trained on.",
        show_default=False,
    ),
]
VllmPython = Annotated[
    Path | None,
    typer.Option(
        "--vllm-python",
        help="Python of the environment with vLLM, if it is another than ours; also EYAS_VLLM_PYTHON.",
        show_default=False,
    ),
]


def holdout(values: list[str] | None) -> dict[str, Any]:
    """`--holdout 100` keeps a number of samples, `--holdout FILE` a whole file."""
    given: dict[str, Any] = {}
    for value in values or []:
        if value.isdigit():
            given["dataset.holdout"] = int(value)
        else:
            given.setdefault("dataset.holdoutSources", []).append(local_path(value))
    return given


def mapping(name: str, file: Path | None, given: Mapping[str, Any], assignments: list[str]) -> dict[str, Any]:
    """The spec as people write it: the file, then the options, then the assignments."""
    result = specs.read(file) if file else {}
    result["name"] = name
    for path, value in given.items():
        result = specs.merge(result, _nested(path, value))
    return specs.override(result, assignments)


def values(given: Mapping[str, Any], assignments: list[str]) -> dict[str, str]:
    """Options and assignments as a `set` of a run that is there: dotted path to JSON."""
    flat = {path: json.dumps(value) for path, value in given.items()}
    for assignment in assignments:
        path = assignment.partition("=")[0]
        value: Any = specs.override({}, [assignment])
        for name in path.split("."):
            value = value[name]
        flat[path] = json.dumps(value)
    return flat


def _nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    result: dict[str, Any] = value
    return result
