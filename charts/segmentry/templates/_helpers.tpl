{{- define "segmentry.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "segmentry.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "segmentry.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "segmentry.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "segmentry.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "segmentry.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* Never changes for a release. The NetworkPolicy of each cluster lets pods with the name and component in. */ -}}
{{- define "segmentry.selectorLabels" -}}
app.kubernetes.io/name: segmentry
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "segmentry.labels" -}}
{{ include "segmentry.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* The Job that runs after an uninstall, and what it needs. Not the operator's selector: no NetworkPolicy lets it to the nodes. */ -}}
{{- define "segmentry.hook.labels" -}}
app.kubernetes.io/name: segmentry
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: detach
{{- end -}}

{{- /* What the Job needs comes before it. */ -}}
{{- define "segmentry.hook.early" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: "-1"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "segmentry.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- /* What the operator may do where it watches, and why. */ -}}
{{- define "segmentry.rules" -}}
# The declared objects: read and watched; patched for the annotation that claims them and for the finalizer of an Index.
- apiGroups: [segmentry.io]
  resources: [indexclusters, indices]
  verbs: [get, list, watch, patch]
# Their status is replaced, so that a stale view never overwrites a newer identity.
- apiGroups: [segmentry.io]
  resources: [indexclusters/status, indices/status]
  verbs: [update]
# Clusters that enforce permissions of owner references (OpenShift) ask for this before an owned object may block its owner's deletion.
- apiGroups: [segmentry.io]
  resources: [indexclusters/finalizers, indices/finalizers]
  verbs: [update]
# Storage nodes run in StatefulSets, which are made, changed and watched for drift. Deletion is the garbage collector's.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
# A restart deletes pods (the sets' strategy is OnDelete); status tells why one does not start.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
# The claim's uid is the identity of a node's disk; a claim that stays unbound is a reason in status. Never written, never deleted.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
# Names for the nodes, and REST for clients.
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
# The token of the internal port. Only by name: no list, no watch.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
# No eviction while it would take the last in-sync copy of a shard.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# The internal port is closed to all but the cluster's nodes and the operator.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
# Events tell what was done; repeats are counted in the same event, which is a patch.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# The events of a volume claim tell why it is not bound.
- apiGroups: [""]
  resources: [events]
  verbs: [list]
# A claim of another operator is respected while its Lease is alive.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get]
{{- end -}}
