"""One cluster: two names of one cluster are known by its id."""

import pytest

from ingestd.mirror.one_cluster import selection_between
from ingestd.mirror.positions import CanNotBegin
from ingestd.mirror.route import MirrorRoute


def route(naming):
    return MirrorRoute("m", "east", "west", (".*",), naming=naming)


@pytest.mark.parametrize("naming", ["identity", "{topic}"])
def test_with_the_same_names_a_cluster_is_not_copied_into_itself(naming):
    # 10 records became 44,000 in 5 s: the cluster was called 127.0.0.1 here and localhost there.
    with pytest.raises(CanNotBegin, match="source east and target west are one cluster, ID: "):
        selection_between(route(naming), "ID", "ID")


@pytest.mark.parametrize("naming", ["prefix", "copy-of-{topic}"])
def test_with_other_names_a_cluster_is_mirrored_within_itself_and_no_copy_is_copied(naming):
    chosen = selection_between(route(naming), "ID", "ID")
    assert chosen.takes("orders")
    assert not chosen.takes(chosen.renamed("orders"))


@pytest.mark.parametrize("naming", ["prefix", "identity"])
def test_two_clusters_are_mirrored_as_configured(naming):
    assert selection_between(route(naming), "ID", "OTHER") == route(naming).selection
