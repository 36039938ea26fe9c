from tests.multi_process.conftest import cluster
from tests.multi_process.conftest import zygote

__all__ = ["cluster", "zygote"]
