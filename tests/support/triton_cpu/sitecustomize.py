"""Lets vLLM's V2 model runner run on a CPU, through Triton's interpreter: put this folder on PYTHONPATH.

Triton has no CPU backend of its own, and vLLM asks for one by name before it imports Triton. A driver that says that it
is active is all that the interpreter (TRITON_INTERPRET=1) needs.
"""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.backends import Backend, backends
    from triton.backends.compiler import BaseBackend
    from triton.backends.driver import DriverBase

    class _Driver(DriverBase):
        def __init__(self):
            pass

        @staticmethod
        def is_active():
            return True

        def map_python_to_cpp_type(self, ty):
            raise NotImplementedError

        def get_current_target(self):
            raise NotImplementedError

        def get_active_torch_device(self):
            raise NotImplementedError

        def get_benchmarker(self):
            raise NotImplementedError

    backends.clear()
    backends["cpu"] = Backend(compiler=BaseBackend, driver=_Driver)
