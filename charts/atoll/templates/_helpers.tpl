{{/*
Labels of every object of the chart, except those of the second scheduler.
*/}}
{{- define "atoll.labels" -}}
{{ include "atoll.managerLabels" . }}
{{ include "atoll.releaseLabels" . }}
{{- end }}

{{/*
Labels of every object of the second scheduler.
*/}}
{{- define "atoll.labelsOfScheduler" -}}
{{ include "atoll.schedulerLabels" . }}
{{ include "atoll.releaseLabels" . }}
{{- end }}

{{- define "atoll.releaseLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: atoll
{{- end }}

{{/*
Labels that select the manager's pods. They never change, because a Deployment's selector is immutable.
*/}}
{{- define "atoll.managerLabels" -}}
app.kubernetes.io/name: atoll-manager
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/*
Labels that select the second scheduler's pods. They never change either.
*/}}
{{- define "atoll.schedulerLabels" -}}
app.kubernetes.io/name: atoll-scheduler
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/*
An image; a digest has priority over a tag. Takes a dict of image and defaultTag.
*/}}
{{- define "atoll.image" -}}
{{- if .image.registry }}{{ .image.registry }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .defaultTag }}{{ end }}
{{- end }}

{{/*
The spread of replicas over hosts. Only pods of the same revision count: in a rolling update
the old ones leave, and the new ones must not end up where those were not.
*/}}
{{- define "atoll.spread" -}}
- topologyKey: kubernetes.io/hostname
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  matchLabelKeys: [pod-template-hash]
  labelSelector:
    matchLabels:
      {{- include .labels .root | nindent 6 }}
{{- end }}

{{/*
The affinity of replicas: they are spread over zones, unless the values have a pod anti-affinity
of their own. This is no topology spread, because kube-scheduler scores no node by one if the
node lacks the label of any of its keys, and many clusters have no zones.
*/}}
{{- define "atoll.affinity" -}}
{{- $labels := fromYaml (include .labels .root) }}
{{- $zones := dict "weight" 100 "podAffinityTerm" (dict "topologyKey" "topology.kubernetes.io/zone" "matchLabelKeys" (list "pod-template-hash") "labelSelector" (dict "matchLabels" $labels)) }}
{{- $default := dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list $zones)) }}
{{- merge (deepCopy .affinity) (hasKey .affinity "podAntiAffinity" | ternary (dict) $default) | toYaml }}
{{- end }}

{{/*
The name in the manager's serving certificate.
*/}}
{{- define "atoll.serverName" -}}
atoll-manager.{{ .Release.Namespace }}.svc
{{- end }}

{{/*
The URL of the extender.
*/}}
{{- define "atoll.extenderURL" -}}
{{- .Values.endpoints.extender | default (printf "https://%s:444" (include "atoll.serverName" .)) -}}
{{- end }}

{{/*
The extended resource that marks the pods to which a policy applies.
*/}}
{{- define "atoll.markResource" -}}
atoll.dev/managed
{{- end }}

{{/*
Not empty if kube-scheduler calls the extender only for pods with the mark.
*/}}
{{- define "atoll.marks" -}}
{{- if and (eq .Values.scheduler.mode "Plain") (eq .Values.scheduler.asks "Managed") }}true{{ end }}
{{- end }}

{{/*
The configuration of the kube-scheduler that calls the extender: the cluster's
own, or the second one.
*/}}
{{- define "atoll.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
{{- if eq .Values.scheduler.mode "Isolated" }}
# This scheduler serves only pods that name it.
profiles:
  - schedulerName: atoll-scheduler
leaderElection:
  leaderElect: true
  resourceLock: leases
  resourceName: atoll-scheduler
  resourceNamespace: {{ .Release.Namespace }}
{{- else }}
{{- with .Values.scheduler.kubeconfig }}
clientConnection:
  kubeconfig: {{ . | quote }}
{{- end }}
{{- end }}
# Otherwise kube-scheduler would stop at the first nodes that fit, possibly without a node
# of the pod's next group.
percentageOfNodesToScore: 100
extenders:
  - urlPrefix: {{ include "atoll.extenderURL" . }}/scheduler
    filterVerb: filter
    preemptVerb: preempt
    {{- if eq .Values.scheduler.filter "Wide" }}
    prioritizeVerb: prioritize
    {{- end }}
    bindVerb: bind
    weight: 1
    enableHTTPS: true
    tlsConfig:
      # The name in the certificate, whatever address the URL has.
      serverName: {{ include "atoll.serverName" . }}
      caFile: {{ .Values.scheduler.tlsDir }}/ca.crt
      certFile: {{ .Values.scheduler.tlsDir }}/tls.crt
      keyFile: {{ .Values.scheduler.tlsDir }}/tls.key
    httpTimeout: 5s
    # Requests and answers have names of nodes only.
    nodeCacheCapable: true
    {{- if include "atoll.marks" . }}
    # Call the extender only for pods that request this resource. The webhook adds a
    # request of 0 to pods to which a policy applies.
    managedResources:
      - name: {{ include "atoll.markResource" . }}
        ignoredByScheduler: true
    {{- end }}
    # A pod that is placed without the extender would have no seat.
    ignorable: false
{{- end }}

{{/*
clientConfig of a webhook; takes a dict of root and path. There is no caBundle:
atoll-manager writes it, and an upgrade must not change it.
*/}}
{{- define "atoll.webhookClientConfig" -}}
{{- if .root.Values.endpoints.webhook -}}
url: {{ printf "%s%s" .root.Values.endpoints.webhook .path | quote }}
{{- else -}}
service:
  name: atoll-manager
  namespace: {{ .root.Release.Namespace }}
  path: {{ .path }}
  port: 443
{{- end -}}
{{- end }}

{{/*
The regular plural of a kind, by the rules of Kubernetes. A kind that is served
under another plural needs the field resource.
*/}}
{{- define "atoll.plural" -}}
{{- $singular := lower . -}}
{{- if hasSuffix "s" $singular -}}
{{ $singular }}es
{{- else if hasSuffix "y" $singular -}}
{{ trimSuffix "y" $singular }}ies
{{- else -}}
{{ $singular }}s
{{- end -}}
{{- end }}

{{/*
The CustomResourceDefinitions that are installed: name and file.
*/}}
{{- define "atoll.crds" -}}
{{- range $path, $_ := .Files.Glob "files/crds/*.yaml" }}
{{- $crd := $.Files.Get $path | fromYaml }}
{{- $optional := dict "apps.openyurt.io" $.Values.pools.enabled "scheduling.volcano.sh" (and $.Values.gangs.enabled (eq $.Values.gangs.crd "IfAbsent")) }}
{{- if or (not (hasKey $optional $crd.spec.group)) (get $optional $crd.spec.group) }}
{{ $crd.metadata.name }}: {{ $path }}
{{- end }}
{{- end }}
{{- end }}

{{/*
CustomResourceDefinitions of others in the cluster that have the same name in kubectl
as one of Atoll's: a command for each, with both full names.
*/}}
{{- define "atoll.sharedWords" -}}
{{- range $other, $ours := dict
    "nodegroups.apps.kubeedge.io" "nodegroups.groupmanagement.kubeedge.io"
    "propagationpolicies.policy.karmada.io" "propagationpolicies.groupmanagement.kubeedge.io"
    "overridepolicies.policy.karmada.io" "overridepolicies.groupmanagement.kubeedge.io" }}
{{- if lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $other }}
  kubectl get {{ $ours }}    # not {{ $other }}
{{- end }}
{{- end }}
{{- end }}
