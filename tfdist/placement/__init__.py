"""Layers of one model on several devices.

`place` puts layers where a user says, or where a partitioner says that they
should be; `report` says where they are.
"""

from tfdist.placement.auto import choose
from tfdist.placement.chain import Pipeline
from tfdist.placement.costs import estimate
from tfdist.placement.costs import measure
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node
from tfdist.placement.mixed import Mixed
from tfdist.placement.mixed import mixed_assignment
from tfdist.placement.operations import following
from tfdist.placement.partition import Partition
from tfdist.placement.partition import partition
from tfdist.placement.place import place
from tfdist.placement.recurrent_stack import RecurrentStack
from tfdist.placement.report import Crossing
from tfdist.placement.report import Report
from tfdist.placement.report import Row
from tfdist.placement.report import report

__all__ = [
    "CostGraph",
    "Crossing",
    "Devices",
    "Edge",
    "Mixed",
    "Node",
    "Partition",
    "Pipeline",
    "RecurrentStack",
    "Report",
    "Row",
    "choose",
    "estimate",
    "following",
    "measure",
    "mixed_assignment",
    "partition",
    "place",
    "report",
]
