"""What KubeRay (1.5) accepts in a RayCluster and a RayJob of ray.io/v1, as far as our files go, as a JSON schema.

Written from KubeRay's reference, with unknown keys forbidden as `kubectl apply --validate=strict` does. The pods' own
part is Kubernetes'. With NBSR_KUBERAY_CRDS=FOLDER (KubeRay's ray-operator/config/crd/bases) the real one is used too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml


def _object(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT, WHOLE, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
QUANTITY = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d+(\.\d+)?(m|[kMGT]i?)?$"}]}
TEXTS = {"type": "object", "additionalProperties": TEXT}  # `num-cpus: 0` without quotes is refused by the real one too
AMOUNTS = {"type": "object", "additionalProperties": QUANTITY}
NAMED = {"type": "object", "properties": {"name": TEXT}, "required": ["name"]}
CONTAINER = _object(
    {
        "name": TEXT,
        "image": TEXT,
        "ports": {"type": "array", "items": _object({"containerPort": WHOLE, "name": TEXT}, ("containerPort",))},
        "env": {"type": "array", "items": _object({"name": TEXT, "value": TEXT}, ("name",))},
        "envFrom": {"type": "array", "items": _object({"secretRef": NAMED})},
        "resources": _object({"requests": AMOUNTS, "limits": AMOUNTS}),
        "volumeMounts": {
            "type": "array",
            "items": _object({"name": TEXT, "mountPath": TEXT, "readOnly": FLAG}, ("name", "mountPath")),
        },
    },
    ("name", "image"),
)
TEMPLATE = _object(
    {
        "spec": _object(
            {
                "containers": {"type": "array", "minItems": 1, "items": CONTAINER},
                "volumes": {"type": "array", "items": NAMED},
                "tolerations": {"type": "array", "items": {"type": "object"}},
            },
            ("containers",),
        )
    },
    ("spec",),
)
CLUSTER_SPEC = _object(
    {
        "rayVersion": TEXT,
        "authOptions": _object({"mode": {"enum": ["disabled", "token"]}, "secretName": TEXT}),
        "enableInTreeAutoscaling": FLAG,
        "autoscalerOptions": _object(
            {
                "version": {"enum": ["v1", "v2"]},
                "upscalingMode": {"enum": ["Default", "Aggressive", "Conservative"]},
                "idleTimeoutSeconds": WHOLE,
            }
        ),
        "headGroupSpec": _object({"rayStartParams": TEXTS, "template": TEMPLATE}, ("template",)),
        "workerGroupSpecs": {
            "type": "array",
            "items": _object(
                {
                    "groupName": TEXT,
                    "replicas": WHOLE,
                    "minReplicas": WHOLE,
                    "maxReplicas": WHOLE,
                    "rayStartParams": TEXTS,
                    "template": TEMPLATE,
                },
                ("groupName", "maxReplicas", "minReplicas", "template"),
            ),
        },
    },
    ("headGroupSpec",),
)
JOB_SPEC = _object(
    {
        "entrypoint": TEXT,
        "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        "backoffLimit": WHOLE,
        "shutdownAfterJobFinishes": FLAG,
        "ttlSecondsAfterFinished": WHOLE,
        "rayClusterSpec": CLUSTER_SPEC,
    },
    ("entrypoint", "rayClusterSpec"),
)


def _resource(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    parts = {"apiVersion": {"const": "ray.io/v1"}, "kind": {"const": kind}, "metadata": NAMED, "spec": spec}
    return _object(parts, tuple(parts))


SCHEMAS = {"RayCluster": _resource("RayCluster", CLUSTER_SPEC), "RayJob": _resource("RayJob", JOB_SPEC)}


def real_schema(kind: str) -> dict[str, Any] | None:
    """The schema of KubeRay's own CRD where its files are at hand; unknown keys are forbidden in it as well."""
    folder = os.environ.get("NBSR_KUBERAY_CRDS")
    if not folder:
        return None
    file = Path(folder) / f"ray.io_{kind.lower()}s.yaml"
    versions = yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    (schema,) = [version["schema"]["openAPIV3Schema"] for version in versions if version["name"] == "v1"]
    strict: dict[str, Any] = _strict(schema)
    return strict


def _strict(node: Any) -> Any:
    """Kubernetes prunes keys that a structural schema does not name; here they are errors."""
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _strict(value) for key, value in node.items() if key not in ("format", "pattern")}
    if node.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
        found.pop("anyOf", None)
    if node.get("properties") and not node.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found
