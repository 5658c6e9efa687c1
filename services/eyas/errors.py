"""The errors of eyas, one tree.

    EyasError
    ├── InputError            what was given cannot be used: the sentence says what, where and the remedy
    ├── StorageError          object storage
    │   ├── AlreadyExistsError    a create-only write found an object
    │   ├── NotFoundError         no such object
    │   ├── StorageFullError      no room, or no right to write: waiting will not help
    │   └── UnavailableError      out of reach: waiting may help
    ├── ReplacedError         a newer writer owns the run: this process must end
    ├── ServiceError          another service of eyas answered with an error, or not at all
    ├── EndpointError         the model server answered with an error, or not at all
    └── DataError             stored data is not what it claims to be

Foreign errors become these in one module each: `storage.objects` (obstore), `rpc.errors` (gRPC), `vllm.client` (HTTP).
"""


class EyasError(Exception):
    """Root of all errors that eyas raises on purpose. `str(error)` is one sentence for a person."""


class InputError(EyasError):
    """What was given cannot be used. The sentence says what, where and the remedy."""


class StorageError(EyasError):
    """Object storage failed."""


class AlreadyExistsError(StorageError):
    """A create-only write found an object: this writer's own, if only the reply was lost."""


class NotFoundError(StorageError):
    """No such object."""


class StorageFullError(StorageError):
    """No room, or no right to write. Waiting will not help."""


class UnavailableError(StorageError):
    """Object storage is out of reach. Waiting may help."""


class ReplacedError(EyasError):
    """A newer writer owns the run. This process must end."""


class ServiceError(EyasError):
    """Another service of eyas answered with an error, or not at all."""


class EndpointError(EyasError):
    """The model server answered with an error, or not at all."""


class DataError(EyasError):
    """Stored data is not what it claims to be."""
