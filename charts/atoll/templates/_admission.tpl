{{/*
The user name of atoll-manager's ServiceAccount.
*/}}
{{- define "atoll.managerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:atoll-manager
{{- end }}

{{/*
CEL: the request is from atoll-manager. A user need not have a name.
*/}}
{{- define "atoll.fromManager" -}}
has(request.userInfo.username) && request.userInfo.username == '{{ include "atoll.managerUser" . }}'
{{- end }}

{{/*
CEL: a list of the namespaces in which atoll-manager starts nothing: those of Kubernetes
itself, and its own.
*/}}
{{- define "atoll.systemNamespaces" -}}
['kube-system', 'kube-node-lease', '{{ .Release.Namespace }}']
{{- end }}

{{/*
CEL: a list of the keys that a write adds, changes or removes in a map of the object,
without those that may change. Takes a dict of now and before, which are the maps, and of
may, an expression about key.
*/}}
{{- define "atoll.changedKeys" -}}
{{ .now }}.filter(key, !({{ .may }}) && !(key in {{ .before }} && {{ .before }}[key] == {{ .now }}[key])) +
{{ .before }}.filter(key, !({{ .may }}) && !(key in {{ .now }}))
{{- end }}

{{/*
Variables of a ValidatingAdmissionPolicy for the metadata of an object: labels and
annotations, and oldLabels and oldAnnotations from before the write. foreignLabels and
foreignAnnotations are the keys that the write changes although it may not, references
whether it changes the owners or the finalizers. Takes a dict of labels and annotations,
CEL about key: whether the key may change.
*/}}
{{- define "atoll.metadataVariables" -}}
{{- $may := . }}
{{- range $field := list "labels" "annotations" }}
{{- $old := printf "old%s" (title $field) }}
- name: {{ $field }}
  expression: object.metadata.?{{ $field }}.orValue({})
- name: {{ $old }}
  expression: oldObject.metadata.?{{ $field }}.orValue({})
- name: foreign{{ title $field }}
  expression: >-
    {{- include "atoll.changedKeys" (dict "now" (printf "variables.%s" $field) "before" (printf "variables.%s" $old) "may" (get $may $field)) | nindent 4 }}
{{- end }}
- name: keepsReferences
  expression: >-
    object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([]) &&
    object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([])
{{- end }}

{{/*
Validations for the variables of atoll.metadataVariables. Takes a dict of what, the name of
the object in messages, and unless, CEL: when the metadata may change.
*/}}
{{- define "atoll.metadataValidations" -}}
{{- $unless := "" }}
{{- with .unless }}{{ $unless = printf "%s || " . }}{{ end }}
{{- range $field := list "Labels" "Annotations" }}
- expression: {{ $unless }}variables.foreign{{ $field }}.size() == 0
  message: atoll-manager may not change these {{ lower $field }} of a {{ $.what }}
  messageExpression: >-
    'atoll-manager may not change these {{ lower $field }} of a {{ $.what }}: ' + variables.foreign{{ $field }}.join(', ')
{{- end }}
- expression: {{ $unless }}variables.keepsReferences
  message: atoll-manager may not change owners and finalizers of a {{ .what }}
{{- end }}

{{/*
The beginning and the end of a ValidatingAdmissionPolicy about writes of atoll-manager. It
refuses a write if an expression fails, and concerns no other user. Takes a dict of root and
name.
*/}}
{{- define "atoll.managerPolicyHead" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  labels:
    {{- include "atoll.labels" .root | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConditions:
    - name: from-atoll-manager
      expression: {{ include "atoll.fromManager" .root }}
{{- end }}

{{- define "atoll.managerPolicyBinding" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "atoll.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [{{ .root.Values.rbac.bounds }}]
{{- end }}
