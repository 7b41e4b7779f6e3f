"""Metadata of topics and subscriptions behind Hedwig's three managers: versioned, written by compare-and-set.

records     the values, and their bytes
port        the managers, versions and errors: the contract of every implementation
operations  many operations in one write on the store's worker
stored      implementation behind the store's engine
recorded    implementation over records by compare-and-set, which hubs share
damage      unreadable records, and their repairs
"""

from ..compare_and_set import BadVersionError, MetadataError, MetadataFailedError, Version, Versioned
from .port import (
    MetadataClosedError,
    MetadataManagers,
    MetadataStatistics,
    NoSubscriptionStateError,
    NoTopicOwnerInfoError,
    NoTopicPersistenceInfoError,
    SubscriptionDataManager,
    SubscriptionStateExistsError,
    TopicOwnershipManager,
    TopicPersistenceManager,
)
from .records import (
    HubInfo,
    PageRange,
    PageRanges,
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
)
from .stored import StoredMetadata

__all__ = [
    "BadVersionError",
    "HubInfo",
    "MetadataClosedError",
    "MetadataError",
    "MetadataFailedError",
    "MetadataManagers",
    "MetadataStatistics",
    "NoSubscriptionStateError",
    "NoTopicOwnerInfoError",
    "NoTopicPersistenceInfoError",
    "PageRange",
    "PageRanges",
    "StoredMetadata",
    "SubscriptionData",
    "SubscriptionDataManager",
    "SubscriptionPreferences",
    "SubscriptionState",
    "SubscriptionStateExistsError",
    "TopicOwnershipManager",
    "TopicPersistenceManager",
    "Version",
    "Versioned",
]
