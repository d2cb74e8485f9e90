"""The tasks of rifflemix. To add a task, write one file and add one line here."""

from __future__ import annotations

from rifflemix.lab.tasks.core.builder import TaskBuilder
from rifflemix.lab.tasks.graphs.molecules import ESOL, FREESOLV, PCQM4M
from rifflemix.lab.tasks.images.cifar import Cifar100, Image
from rifflemix.lab.tasks.images.digits import Digits, Mnist
from rifflemix.lab.tasks.images.image_bytes import ImageBytes
from rifflemix.lab.tasks.images.image_folder import (
    DOGS_VS_CATS,
    FLOWERS,
    IMAGE_FOLDER,
    IMAGENET,
    PETS,
    TINY_IMAGENET,
)
from rifflemix.lab.tasks.synthetic.associative import (
    FuzzyRecall,
    InContextRecall,
    MultiQueryRecall,
    NoisyRecall,
)
from rifflemix.lab.tasks.synthetic.copying import (
    Compression,
    Copying,
    Induction,
    Memorization,
    Needle,
    SelectiveCopying,
    StateTracking,
)
from rifflemix.lab.tasks.synthetic.examples import EXAMPLES, PointClouds
from rifflemix.lab.tasks.synthetic.listops import ListOps
from rifflemix.lab.tasks.synthetic.pathfinder import Pathfinder
from rifflemix.lab.tasks.synthetic.sorting import Sorting
from rifflemix.lab.tasks.text.corpora import LM1B, Segmentation
from rifflemix.lab.tasks.text.language import PennTreebank, Shakespeare, WikiText
from rifflemix.lab.tasks.text.nli import SNLI, MultiNLI, Sick
from rifflemix.lab.tasks.text.openwebtext import OpenWebText
from rifflemix.lab.tasks.text.passages import Passages
from rifflemix.lab.tasks.text.retrieval import Retrieval
from rifflemix.lab.tasks.text.sst import SST
from rifflemix.lab.tasks.text.text import Text
from rifflemix.lab.tasks.user_data.builders import USER_FILES

BUILT_IN: dict[str, TaskBuilder] = {
    task.card.name: task
    for task in (
        Digits(),
        ListOps(),
        Image(),
        Cifar100(),
        Text(),
        Retrieval(),
        Passages(),
        Pathfinder("pathfinder32", "Pathfinder-32", 32),
        Pathfinder("pathfinder64", "Pathfinder-64", 64),
        Pathfinder("pathfinder128", "Pathfinder-128", 128),
        Pathfinder("pathfinder256", "Pathfinder-256", 256),
        Pathfinder("pathx", "Path-X", 128),
        Mnist(),
        IMAGENET,
        TINY_IMAGENET,
        DOGS_VS_CATS,
        FLOWERS,
        PETS,
        IMAGE_FOLDER,
        PennTreebank(),
        Shakespeare(),
        WikiText(),
        Segmentation(),
        LM1B(),
        OpenWebText(),
        ImageBytes(),
        Sorting(),
        MultiQueryRecall(),
        InContextRecall(),
        NoisyRecall(),
        FuzzyRecall(),
        SelectiveCopying(),
        Compression(),
        Memorization(),
        Copying(),
        Induction(),
        Needle(),
        StateTracking(),
        SST(),
        Sick(),
        SNLI(),
        MultiNLI(),
        PointClouds(),
        *EXAMPLES,
        ESOL,
        FREESOLV,
        PCQM4M,
        *USER_FILES,
    )
}
