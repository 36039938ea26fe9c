import pathlib
import sys

# Where the programs of benchmarks/ find their harness. Last: their names
# shadow nobody's.
sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))
