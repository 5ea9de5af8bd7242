"""Leases as blobs, in the layout that the official SDKs use."""

from leasehold.stores.azure_blob.store import AzureBlobStore

__all__ = ["AzureBlobStore"]
