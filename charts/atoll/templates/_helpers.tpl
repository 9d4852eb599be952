{{/*
Labels of every object of the chart.
*/}}
{{- define "atoll.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "atoll.managerLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: atoll
{{- end }}

{{/*
What selects the manager's pods. Never changes: a Deployment's selector cannot.
*/}}
{{- define "atoll.managerLabels" -}}
app.kubernetes.io/name: atoll-manager
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/*
The manager's image: a digest wins over a tag.
*/}}
{{- define "atoll.image" -}}
{{- with .Values.image -}}
{{- if .registry }}{{ .registry }}/{{ end }}{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/*
The name that the manager's serving certificate is made out for.
*/}}
{{- define "atoll.serverName" -}}
atoll-manager.{{ .Release.Namespace }}.svc
{{- end }}

{{/*
Where kube-scheduler finds the extender.
*/}}
{{- define "atoll.extenderURL" -}}
{{- .Values.endpoints.extender | default (printf "https://%s:444" (include "atoll.serverName" .)) -}}
{{- end }}

{{/*
clientConfig of a webhook; takes a dict of root and path. There is no caBundle:
atoll-manager writes it, and an upgrade must leave it alone.
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
The plural of a kind as most are: Kubernetes' own guess. A kind that is served
under another needs the field resource.
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
