# SPDX-License-Identifier: Apache-2.0
"""A client that is told the metadata of objects only: who watches all pods of a cluster needs no more.

The API server cuts the rest away (``PartialObjectMetadata``), so that it is neither sent nor read.
"""

from __future__ import annotations

from fairsched.k8s.client import PAGE, KubeClient

_MOST_PODS = 150_000
"""As many as Kubernetes says that a cluster may have."""
_OBJECT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class MetadataClient(KubeClient):
    """Lists and watches; of each object ``metadata`` alone."""

    most_pages = _MOST_PODS // PAGE

    def _headers(self, content_type: str | None) -> dict[str, str]:
        return {**super()._headers(content_type), "Accept": f"{_LIST},{_OBJECT}"}
