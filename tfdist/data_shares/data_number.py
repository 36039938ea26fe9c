"""The number by which a worker knows whether its data is the chief's."""

from typing import NamedTuple

from absl import logging


class DataNumber(NamedTuple):
    """A number of the data of one call of `fit`.

    Attributes:
      value: An int; 0 where nothing is compared.
      is_seed: Whether it is of the seed of the order; else it is of the first
        batch.
    """

    value: int = 0
    is_seed: bool = False

    def warns(self, chiefs):
        """Warns of data that is not what the chief shares out.

        Args:
          chiefs: The chief's number, an int; 0 if it compares nothing.

        Returns:
          Whether it has.
        """
        if not (self.value and chiefs) or self.value == chiefs:
            return False
        if self.is_seed:
            logging.warning(
                "This worker shuffles the data with another seed than the "
                "chief: their shares overlap, so that some examples are "
                "trained on twice and others not at all. Set the same seed on "
                "all workers (keras.utils.set_random_seed). Random numbers of "
                "layers differ between workers all the same."
            )
            return True
        logging.warning(
            "The first batch of the PyDataset is another one here than on the "
            "chief. Each worker trains on every Nth batch: if they come in "
            "another order here, some are trained on twice and others not at "
            "all. Draw the order from the number of the epoch, so that looking "
            "at the data (`evaluate`, `adapt`) does not change it. If the "
            "same examples are only augmented in another way, all is well."
        )
        return True
