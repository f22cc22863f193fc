"""Statistics: arrays in, numbers out. This room knows no model.

Two estimands, kept apart: the mean over rows (`cluster_mean` and its kin, the headline of every study) and
the mean of cluster means (`item_t`). A p goes with the one that it tests. Differences are taken before
ratios, and a ratio to an effect that may be 0 is undefined, in words.
"""

from timonel.stats.cluster import cluster_difference, cluster_mean, cluster_percentile, cluster_quantity
from timonel.stats.estimate import Estimate
from timonel.stats.ratio import RatioEstimate, fieller, reduction
from timonel.stats.tests import Alternative, ItemTest, benjamini_hochberg, holm, item_t, permutation_p

__all__ = [
    "Alternative",
    "Estimate",
    "ItemTest",
    "RatioEstimate",
    "benjamini_hochberg",
    "cluster_difference",
    "cluster_mean",
    "cluster_percentile",
    "cluster_quantity",
    "fieller",
    "holm",
    "item_t",
    "permutation_p",
    "reduction",
]
