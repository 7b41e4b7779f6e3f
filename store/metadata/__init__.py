"""Metadata of topics and subscriptions behind Hedwig's three managers: versioned, written by compare-and-set.

records     what is kept: values and bytes
port        the managers, versions and errors: what every implementation promises
memory      one without a store
operations  many operations in one write on the store's worker
stored      one behind the store's engine
damage      records that can't be read, and what mends them
"""

from .memory import MemoryMetadata
from .port import (
    BadVersionError,
    MetadataClosedError,
    MetadataError,
    MetadataFailedError,
    MetadataManagers,
    MetadataStatistics,
    NoSubscriptionStateError,
    NoTopicOwnerInfoError,
    NoTopicPersistenceInfoError,
    SubscriptionDataManager,
    SubscriptionStateExistsError,
    TopicOwnershipManager,
    TopicPersistenceManager,
    Version,
    Versioned,
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
    "MemoryMetadata",
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
